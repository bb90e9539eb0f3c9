"""Faults on the real server: whatever dies, clients get an error within 5 s, and the server comes back.

Each test breaks a server of its own, on purpose.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from backends.serving.settings import VOICES
from client import ServerFull, TTSClient, TTSError, Unavailable
from launcher import leftovers
from launcher.instance import Instance
from tests.e2e.servers import running_server

LONG = " ".join(f"This is sentence number {n} of a story that goes on." for n in range(1, 60))


@pytest.fixture
def broken(tmp_path):
    with running_server(tmp_path, probe_seconds=2.0, drain_seconds=3.0) as settings:
        yield settings


def stub(identity: str, model: str) -> int:
    return leftovers.model_processes(identity)[model]


def identity_of(settings, runtime):
    state = Instance(settings.grpc_port, runtime).state()
    assert state is not None
    return state.identity


class Open:
    """A stream read in a thread of its own: what ended it, and when."""

    def __init__(self, client, text=LONG, wait_for_audio=True):
        self.error = None
        self.finish_reason = None
        self.ended_at = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(client, text))
        self._thread.start()
        if wait_for_audio:
            assert self._started.wait(20)

    def _read(self, client, text):
        try:
            for chunk in client.stream(text):
                self._started.set()
                self.finish_reason = chunk.finish_reason
        except TTSError as error:
            self.error = error
        self.ended_at = time.monotonic()
        self._started.set()

    def end(self, seconds):
        self._thread.join(seconds)
        assert self.ended_at is not None, "the client hangs"
        return self


def speaks_again(url, seconds=120.0):
    end = time.monotonic() + seconds
    while True:
        try:
            with TTSClient(url) as client:
                return client.say("Back again.").seconds > 0.3
        except TTSError:
            assert time.monotonic() < end, "the server does not come back"
            time.sleep(0.2)


@pytest.mark.parametrize("model", ["talker", "codec"])
def test_a_killed_model_process(broken, tmp_path, model):
    identity = identity_of(broken, tmp_path)
    with TTSClient(broken.grpc_url) as client:
        streams = [Open(client) for _ in range(6)]
        killed_at = time.monotonic()
        os.kill(stub(identity, model), signal.SIGKILL)
        for stream in streams:
            assert stream.end(5.0).error is not None
            assert stream.ended_at - killed_at < 5.0
            assert stream.error.code == "UNAVAILABLE"
    assert speaks_again(broken.grpc_url)


@pytest.mark.parametrize("model", ["talker", "codec"])
def test_a_stuck_model_process(broken, tmp_path, model):
    """Alive but not moving: the lock is held, only the heartbeat tells."""
    identity = identity_of(broken, tmp_path)
    with TTSClient(broken.grpc_url) as client:
        streams = [Open(client) for _ in range(3)]
        stuck_at = time.monotonic()
        os.kill(stub(identity, model), signal.SIGSTOP)
        for stream in streams:
            assert stream.end(8.0).error is not None
            assert stream.ended_at - stuck_at < 6.0
    assert speaks_again(broken.grpc_url)


def test_a_killed_server(broken, tmp_path):
    identity = identity_of(broken, tmp_path)
    server = next(pid for pid in leftovers.processes(identity) if is_server(pid))
    with TTSClient(broken.grpc_url) as client:
        stream = Open(client)
        os.kill(server, signal.SIGKILL)
        assert isinstance(stream.end(5.0).error, Unavailable)
    assert speaks_again(broken.grpc_url)


def is_server(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"tritonserver")


def test_sigterm_lets_open_streams_end_or_fails_them_within_the_limit_and_leaves_nothing(tmp_path):
    with running_server(tmp_path, drain_seconds=2.0) as settings:
        instance = Instance(settings.grpc_port, tmp_path)
        state = instance.state()
        with TTSClient(settings.grpc_url) as client:
            short = Open(client, "A short sentence ends in time.")
            long = Open(client)
            os.kill(state.pid, signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(TTSError):
                client.say("Nobody is admitted now.")
            assert short.end(6.0).finish_reason == "stop"
            assert long.end(6.0).error is not None
        end = time.monotonic() + 20
        while instance.running():
            assert time.monotonic() < end, "the server does not end"
            time.sleep(0.05)
        assert instance.state().state == "stopped"
        assert list(leftovers.processes(state.identity)) == []
        assert list(leftovers.shared_memory(state.identity)) == []


def test_more_streams_than_slots_and_queue(tmp_path):
    voice = tmp_path / "small.yaml"
    wren = VOICES / "wren.yaml"
    document = yaml.safe_load(wren.read_text())
    document["checkpoint"] = str(VOICES / document["checkpoint"])
    document["engine"] |= {"max_slots": 2, "queue": 2}
    voice.write_text(yaml.safe_dump(document))
    with (
        running_server(tmp_path, voice=str(voice), probe_seconds=0.0) as settings,
        TTSClient(settings.grpc_url) as client,
        ThreadPoolExecutor(16) as pool,
    ):

        def attempt(_):
            began = time.monotonic()
            try:
                return client.say("All of us speak at once, if there is room.").finish_reason, 0.0
            except ServerFull:
                return "full", time.monotonic() - began

        results = list(pool.map(attempt, range(16)))
        assert {reason for reason, _ in results} == {"stop", "full"}
        assert max(seconds for _, seconds in results) < 2.0
        assert client.ping().active == 0
        assert client.say("There is room again.").finish_reason == "stop"


def test_a_client_process_that_is_killed_frees_its_slot(broken):
    code = (
        "import sys; from client import TTSClient\n"
        "for chunk in TTSClient(sys.argv[1]).stream(sys.argv[2]): print('chunk', flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, broken.grpc_url, LONG], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert process.stdout.readline() == b"chunk\n"
    with TTSClient(broken.grpc_url) as client:
        assert client.ping().active == 1
        process.kill()
        process.wait()
        end = time.monotonic() + 5
        while client.ping().active:
            assert time.monotonic() < end, "the slot is not freed"
            time.sleep(0.05)

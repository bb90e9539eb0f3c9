"""Clients that read slowly, not at all, or are stopped: nothing is lost, nothing piles up, others do not notice."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from bench.server import BenchServer, ServerPlan
from client import Cancelled, TTSClient
from tests.e2e.raw import Connection, text_request
from tests.e2e.test_control import idle, wait_until

STORY = " ".join(f"This is sentence number {n} of a story that goes on." for n in range(1, 300))
WINDOW = 1.0
LARGEST_CHUNK = 1.2


@pytest.fixture(scope="module")
def impatient():
    """A server with small limits: a stream that stands is dropped after 1.5 s, a silent connection after 2 s."""
    plan = ServerPlan(
        "wren",
        changes={"limits": {"stalled_seconds": 1.5}},
        extra=("--grpc-keepalive-time=1000", "--grpc-keepalive-timeout=1000"),
    )
    with BenchServer(plan) as server:
        yield server


@pytest.fixture
def client(impatient):
    with TTSClient(impatient.url, flow_window_seconds=WINDOW) as client:
        yield client


def test_a_client_that_reads_a_chunk_a_second_loses_nothing(client, impatient):
    text = " ".join(STORY.split(". ")[:2]) + "."
    with TTSClient(impatient.url, flow_window_seconds=None) as free:
        expected = free.say(text, seed=3).samples
    chunks = []
    with client.stream(text, seed=3) as stream:
        for chunk in stream:
            chunks.append(chunk)
            time.sleep(1.0)
    assert chunks[-1].finish_reason == "stop"
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert samples.shape == expected.shape
    np.testing.assert_allclose(samples, expected, atol=1e-5)


def test_a_client_that_stops_reading_is_dropped_and_others_go_on(client):
    text = "Somebody else speaks meanwhile."
    expected = client.say(text, seed=5).samples
    with ExitStack() as stack:
        stuck = [stack.enter_context(client.stream(STORY)) for _ in range(8)]
        for stream in stuck:
            next(stream)
        assert client.ping().active == 8
        with ThreadPoolExecutor(2) as pool:
            for other in pool.map(lambda _: client.say(text, seed=5), range(4)):
                np.testing.assert_allclose(other.samples, expected, atol=1e-5)
        wait_until(idle(client))
        for stream in stuck:
            seconds = 0.0
            with pytest.raises(Cancelled, match=r"took no audio for 1\.5 s \(limits\.stalled_seconds\)"):
                for chunk in stream:
                    seconds += chunk.seconds
            assert 0 < seconds <= WINDOW + 2 * LARGEST_CHUNK  # a window was made, not a story


def test_acknowledging_what_was_not_asked_for_is_told(impatient):
    with Connection(impatient.url) as raw, TTSClient(impatient.url, flow_window_seconds=None) as free:
        stream = free.stream(STORY, stream_id="free")
        next(stream)
        ack = {"op": "ack", "stream_id": "free", "position": 1280}
        assert "was started without flow_window_seconds" in raw.error(text_request("", ack, model="talker"))
        stream.close()
        nameless = text_request("Hello.", {"flow_window_seconds": 5.0})
        assert "flow_window_seconds needs stream_id" in raw.error(nameless)
        wait_until(idle(free))


def test_a_client_process_that_is_stopped_frees_its_slot(client, impatient):
    """It keeps its connection and takes nothing; only the server's own pings can tell."""
    code = (
        "import sys; from client import TTSClient\n"
        "client = TTSClient(sys.argv[1], flow_window_seconds=None)\n"
        "for chunk in client.stream(sys.argv[2]): print('chunk', flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, impatient.url, STORY], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    try:
        assert process.stdout.readline() == b"chunk\n"
        os.kill(process.pid, signal.SIGSTOP)
        assert client.ping().active == 1
        wait_until(idle(client), seconds=15.0)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert client.say("Back to work.").finish_reason == "stop"

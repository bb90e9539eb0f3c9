"""Flow control: both clients tell the server what their user has taken, and nothing else."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from client import AsyncTTSClient, InvalidArgument, TTSClient
from tests.client.scripted_server import RATE, ScriptedServer, Stream, audio, eventually, final, parameter
from tests.client.scripts import Responses

CHUNK = np.zeros(RATE // 10, np.float32)
CHUNKS = 100  # ten seconds
WINDOW = 4.0


class Waiting:
    """Sends while less than a window is unacknowledged, as the talker does; keeps what it saw."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.sent = 0
        self.waited = False

    def __call__(self, stream: Stream, request: Any) -> Responses:
        self.stream = stream
        window = parameter(request, "flow_window_seconds")
        for self.sent in range(1, CHUNKS + 1):
            while self.sent * 0.1 - (stream.acknowledged or [0])[-1] / RATE > window:
                self.waited = True
                if stream.silence(0.01) or not stream.context.is_active():
                    return
            reason = "stop" if self.sent == CHUNKS else None
            yield audio(request, self.sent - 1, (self.sent - 1) * len(CHUNK), CHUNK, finish_reason=reason)
        yield final(request)


@pytest.fixture
def script(server: ScriptedServer) -> Waiting:
    server.script = script = Waiting()
    return script


def test_a_user_who_takes_little_is_not_sent_more_than_a_window_ahead(
    server: ScriptedServer, script: Waiting
) -> None:
    with TTSClient(server.url, flow_window_seconds=WINDOW) as client, client.stream("hello") as stream:
        taken = [next(stream) for _ in range(5)]
        assert eventually(lambda: script.waited)
        assert script.sent <= WINDOW / 0.1 + 1
        assert script.stream is not None and script.stream.acknowledged == []
        taken += list(stream)
    assert len(taken) == CHUNKS
    positions = script.stream.acknowledged
    assert positions == sorted(set(positions))
    assert np.diff([0, *positions]).min() >= WINDOW / 4 * RATE


async def test_the_same_with_asyncio(server: ScriptedServer, script: Waiting) -> None:
    async with (
        AsyncTTSClient(server.url, flow_window_seconds=WINDOW) as client,
        client.stream("hello") as stream,
    ):
        taken = [await anext(stream) for _ in range(5)]
        while not script.waited:
            taken.append(await anext(stream))
        taken += [chunk async for chunk in stream]
    assert len(taken) == CHUNKS
    assert script.stream is not None
    positions = script.stream.acknowledged
    assert len(positions) > 2 and positions == sorted(set(positions))


def test_a_long_rest_of_the_user_is_not_the_servers_silence(server: ScriptedServer, script: Waiting) -> None:
    client = TTSClient(server.url, flow_window_seconds=WINDOW, inactivity_timeout=0.5)
    with client, client.stream("hello") as stream:
        assert eventually(lambda: script.waited)
        time.sleep(0.7)  # longer than the limit
        assert len(list(stream)) == CHUNKS


def test_without_a_window_nothing_is_acknowledged(server: ScriptedServer) -> None:
    with TTSClient(server.url, flow_window_seconds=None) as client:
        client.say("hello")
    assert "flow_window_seconds" not in server.requests()[0].parameters
    assert "ack" not in server.operations()


def test_a_window_too_small_for_a_chunk_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"flow_window_seconds is 0\.1, must be >= 1"):
        TTSClient("localhost:1", flow_window_seconds=0.1)

"""AsyncTTSClient: the same contract as TTSClient, and what is particular to asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from client import (
    AsyncTTSClient,
    Cancelled,
    InactivityTimeout,
    InternalError,
    InvalidArgument,
    ProtocolError,
    ServerFull,
    Unavailable,
)
from client import async_client as module
from tests.client import scripts
from tests.client.scripted_server import ScriptedServer, error, parameter, speech, text_of


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[AsyncTTSClient]:
    async with AsyncTTSClient(server.url, inactivity_timeout=5, control_timeout=2) as connected:
        yield connected


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


async def cancelled_cleanly(server: ScriptedServer) -> bool:
    """op=cancel came, and the call then ended by itself instead of being broken off."""
    return await eventually(lambda: server.operations() == ["cancel"] and server.calls_open == 0) and (
        server.calls_broken_off == 0
    )


class TestWholeStreams:
    @pytest.mark.parametrize("merged", [True, False])
    async def test_say_joins_all_chunks(
        self, server: ScriptedServer, client: AsyncTTSClient, merged: bool
    ) -> None:
        server.script = lambda stream, request: speech(request, 4, merged_final=merged)
        utterance = await client.say("hello", voice="wren")
        assert np.allclose(utterance.samples, np.arange(4 * 480) % 1000 / 1000)
        assert (utterance.finish_reason, utterance.trace.succeeded) == ("stop", True)
        assert parameter(server.requests()[0], "voice") == "wren"

    async def test_no_frame_is_a_clean_end(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        server.script = lambda stream, request: speech(request, 0)
        utterance = await client.say("...")
        assert (utterance.samples.size, utterance.sample_rate, utterance.trace.succeeded) == (0, None, True)

    async def test_a_finished_stream_sends_no_cancel(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        async with client.stream("hello") as stream:
            assert [chunk.index async for chunk in stream] == [0, 1, 2]
        assert [chunk async for chunk in stream] == []
        assert await eventually(lambda: server.calls_open == 0)
        assert (server.operations(), server.calls_broken_off) == ([], 0)

    async def test_arrival_is_when_the_response_came_not_when_it_was_read(
        self, client: AsyncTTSClient
    ) -> None:
        stream = client.stream("hello")
        await eventually(lambda: stream.trace.end_seconds is not None)
        await asyncio.sleep(0.2)
        assert [chunk.arrival_seconds < 0.2 async for chunk in stream] == [True] * 3

    async def test_a_slow_reader_loses_nothing(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        server.script = lambda stream, request: speech(request, 600)
        stream = client.stream("hello", inactivity_timeout=0.2)
        await asyncio.sleep(0.5)
        assert sum([len(chunk.samples) async for chunk in stream]) == 600 * 480

    def test_a_client_may_be_made_before_the_loop_runs(self, server: ScriptedServer) -> None:
        client = AsyncTTSClient(server.url)

        async def speak() -> int:
            async with client:
                return len((await client.say("hello")).chunks)

        assert asyncio.run(speak()) == 3


class TestErrors:
    async def test_refused_at_once(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        server.script = scripts.refused
        with pytest.raises(ServerFull, match="64 streams"):
            await client.say("hello")

    async def test_audio_before_an_error_is_delivered_first(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        server.script = scripts.fails_after_two
        stream = client.stream("hello")
        assert [(await anext(stream)).index, (await anext(stream)).index] == [0, 1]
        for _ in range(2):
            with pytest.raises(InternalError, match="the codec failed"):
                await anext(stream)
        assert stream.trace.error_code == "INTERNAL"

    async def test_a_hole_ends_and_cancels_the_stream(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        server.script = scripts.hole
        with pytest.raises(ProtocolError, match="hole before chunk 1"):
            await client.say("hello")
        assert await cancelled_cleanly(server)

    async def test_a_fault_while_reading_reaches_the_user(
        self, server: ScriptedServer, client: AsyncTTSClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def faulty(*_: object) -> None:
            raise RecursionError("deep")

        monkeypatch.setattr("client.protocol.raw_outputs", faulty)
        with pytest.raises(ProtocolError, match="could not be read: RecursionError"):
            await client.say("hello")
        assert await eventually(lambda: server.operations() == ["cancel"])

    async def test_silence_is_a_timeout_and_cancels(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        server.script = scripts.one_chunk_then_silent
        stream = client.stream("hello", inactivity_timeout=0.1)
        await anext(stream)
        for _ in range(2):
            with pytest.raises(InactivityTimeout, match=r"sent nothing for 0\.1 s"):
                await anext(stream)
        assert await cancelled_cleanly(server)

    async def test_the_server_dies(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        server.script = scripts.one_chunk_then_silent
        stream = client.stream("hello")
        await anext(stream)
        threading.Thread(target=server.stop).start()
        with pytest.raises(Unavailable, match=server.url):
            await anext(stream)

    async def test_no_server_at_all(self) -> None:
        async with AsyncTTSClient("localhost:1") as client:
            with pytest.raises(Unavailable, match="no server at localhost:1"):
                await client.say("hello")
            with pytest.raises(Unavailable, match="no server at localhost:1"):
                await client.ping()

    async def test_the_server_closes_the_call_without_a_final(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        server.closes_early = True
        server.script = lambda stream, request: iter(list(speech(request, 2))[:-1])
        with pytest.raises(ProtocolError, match="closed the call"):
            await client.say("hello")


class TestCancelling:
    @pytest.fixture(autouse=True)
    def endless(self, server: ScriptedServer) -> None:
        server.script = scripts.one_chunk_then_silent

    async def test_a_cancelled_task_in_a_context(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        started = asyncio.Event()

        async def speak() -> None:
            async with client.stream("hello") as stream:
                async for _ in stream:
                    started.set()

        task = asyncio.create_task(speak())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await cancelled_cleanly(server)

    async def test_a_cancelled_task_without_one(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        stream = client.stream("hello")
        await anext(stream)
        task = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await cancelled_cleanly(server)

    async def test_say_under_a_deadline(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.say("hello"), 0.1)
        assert await cancelled_cleanly(server)

    async def test_break_and_drop(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        async for _ in client.stream("hello"):
            break
        gc.collect()
        assert await cancelled_cleanly(server)

    @pytest.mark.parametrize("asynchronously", [True, False])
    async def test_close_returns_at_once(
        self,
        server: ScriptedServer,
        client: AsyncTTSClient,
        monkeypatch: pytest.MonkeyPatch,
        asynchronously: bool,
    ) -> None:
        monkeypatch.setattr(module, "CANCEL_GRACE_SECONDS", 0.2)
        server.script = scripts.deaf
        stream = client.stream("hello")
        await anext(stream)
        await stream.aclose() if asynchronously else stream.close()
        assert [chunk async for chunk in stream] == []
        assert server.calls_open == 1  # the call is still being wound up behind the scenes

    async def test_closing_ends_a_wait_in_another_task(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        stream = client.stream("hello")
        await anext(stream)
        waiting = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.02)
        stream.close()
        assert await asyncio.wait_for(waiting, 2) == []
        assert await cancelled_cleanly(server)

    async def test_a_deaf_server_is_hung_up_on(
        self, server: ScriptedServer, client: AsyncTTSClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "CANCEL_GRACE_SECONDS", 0.1)
        server.script = scripts.deaf
        stream = client.stream("hello")
        await anext(stream)
        stream.close()
        assert await eventually(lambda: server.calls_open == 0)
        assert server.calls_broken_off == 1

    async def test_closing_the_client_cancels_what_runs(self, server: ScriptedServer) -> None:
        async with AsyncTTSClient(server.url) as client:
            streams = [client.stream("hello") for _ in range(3)]
            for stream in streams:
                await anext(stream)
        assert server.operations() == ["cancel"] * 3
        assert await eventually(lambda: server.calls_open == 0)
        assert server.calls_broken_off == 0
        with pytest.raises(Unavailable, match="the client is closed"):
            client.stream("x")

    async def test_by_another_request(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        stream = client.stream("hello", stream_id="shared")
        await anext(stream)
        assert (await client.cancel("shared")).ok
        assert [chunk.finish_reason async for chunk in stream] == ["cancelled"]

    def test_the_end_of_the_event_loop_ends_the_call(self, server: ScriptedServer) -> None:
        async def leave() -> None:
            client = AsyncTTSClient(server.url)
            await anext(client.stream("hello"))

        asyncio.run(leave())
        deadline = time.monotonic() + 5
        while server.calls_open and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.calls_open == 0


class TestIncrementalText:
    @pytest.fixture(autouse=True)
    def talkative(self, server: ScriptedServer) -> None:
        server.script = scripts.speaks_its_text

    async def test_one_task_writes_another_listens(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        async with client.open() as stream:

            async def write() -> None:
                for piece in ("", " ", "the ", "words", " ", "of a ", "model"):
                    await stream.append(piece)
                await stream.end()

            chunks, _ = await asyncio.gather(collect(stream), write())
        assert len(chunks) == 6
        assert text_of(server.requests()[0]) == " the "
        assert server.operations() == ["append", "append", "append", "end"]

    async def test_all_text_first_then_all_audio(self, client: AsyncTTSClient) -> None:
        stream = client.open("0 ")
        for word in range(1, 400):
            await stream.append(f"{word} ")
        await stream.end()
        assert len(await collect(stream)) == 401

    async def test_silence_is_a_timeout_only_after_the_end(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        server.script = scripts.silent
        stream = client.open("one", inactivity_timeout=0.1)
        waiting = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await stream.end()
        with pytest.raises(InactivityTimeout):
            await waiting

    async def test_what_append_raises(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        stream = client.open("one")
        await anext(stream)
        server.control = lambda request: iter([error(request, "INVALID_ARGUMENT: too long")])
        with pytest.raises(InvalidArgument, match="too long"):
            await stream.append("two")
        server.control = None
        stream.close()
        with pytest.raises(Cancelled):
            await stream.append("three")
        with pytest.raises(InvalidArgument, match="blank"):
            await client.open().end()

    async def test_an_append_that_nobody_answers(self, server: ScriptedServer) -> None:
        async with AsyncTTSClient(server.url, control_timeout=0.1) as client:
            stream = client.open("one")
            server.control = lambda request: iter(())
            with pytest.raises(Unavailable, match="did not answer append"):
                await stream.append("two")
            server.control = None

    async def test_append_while_the_server_dies(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        stream = client.open("one")
        await anext(stream)
        server.control = lambda request: iter(())
        threading.Timer(0.1, server.stop).start()
        with pytest.raises(Unavailable):
            await stream.append("two")

    async def test_closing_ends_an_append_that_waits(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        stream = client.open("one")
        await anext(stream)
        server.control = lambda request: iter(())
        asyncio.get_running_loop().call_later(0.1, stream.close)
        with pytest.raises(Cancelled, match="the stream is closed"):
            await stream.append("two")
        server.control = None

    async def test_end_of_a_stream_that_has_ended_by_itself(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        server.script = lambda stream, request: speech(request, 2)
        stream = client.open("one")
        await eventually(lambda: stream.trace.end_seconds is not None)
        await stream.end()
        assert len(await collect(stream)) == 2


class TestControl:
    async def test_ping_wait_ready_and_drain(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        assert (await client.ping()).op == "ping"
        assert (await client.wait_ready(5)).ok
        server.control = lambda request: speech(request, 0)
        with pytest.raises(ProtocolError, match="without a status"):
            await client.drain(5)
        assert parameter(server.log[-1], "limit_seconds") == 5.0

    async def test_wait_ready_gives_up_with_the_last_reason(self, server: ScriptedServer) -> None:
        async with AsyncTTSClient(server.url, model="nope") as client:
            with pytest.raises(Unavailable, match=r"not ready after 0\.2 s: model nope"):
                await client.wait_ready(0.2)


class TestManyAtOnce:
    async def test_32_streams_on_one_client(self, server: ScriptedServer, client: AsyncTTSClient) -> None:
        server.script = lambda stream, request: speech(request, 5 + len(text_of(request)))
        utterances = await asyncio.gather(*(client.say("x" * number) for number in range(1, 33)))
        for number, utterance in enumerate(utterances, 1):
            assert len(utterance.chunks) == 5 + number
            assert np.allclose(utterance.samples, np.arange(len(utterance.samples)) % 1000 / 1000)

    async def test_nothing_is_left_after_many_cancels(
        self, server: ScriptedServer, client: AsyncTTSClient
    ) -> None:
        for _ in range(5):
            streams = [client.stream("hello") for _ in range(10)]
            for stream in streams:
                await anext(stream)
                stream.close()
        assert await eventually(lambda: server.calls_open == 0 and not client._sessions)
        assert server.calls_broken_off == 0
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("tts-")] == []


async def collect(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]

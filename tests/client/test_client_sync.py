"""TTSClient against a scripted server: streams, ends, errors, cancelling, incremental text, many at once."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

from client import (
    Cancelled,
    InactivityTimeout,
    InternalError,
    InvalidArgument,
    KeepAlive,
    ProtocolError,
    ServerFull,
    TTSClient,
    TTSError,
    Unavailable,
)
from client import sync_client as module
from tests.client import scripts
from tests.client.scripted_server import ScriptedServer, error, eventually, parameter, speech, status, text_of


@pytest.fixture
def client(server: ScriptedServer) -> Any:
    with TTSClient(server.url, inactivity_timeout=5, control_timeout=2) as connected:
        yield connected


class TestWholeStreams:
    @pytest.mark.parametrize("merged", [True, False])
    def test_say_joins_all_chunks(self, server: ScriptedServer, client: TTSClient, merged: bool) -> None:
        server.script = lambda stream, request: speech(request, 4, merged_final=merged)
        utterance = client.say("hello", voice="wren", seed=3)
        assert np.allclose(utterance.samples, np.arange(4 * 480) % 1000 / 1000)
        assert (utterance.sample_rate, utterance.channels, utterance.finish_reason) == (24_000, 1, "stop")
        assert utterance.seconds == pytest.approx(0.08)
        assert utterance.trace.succeeded
        request = server.requests()[0]
        assert (text_of(request), parameter(request, "voice"), parameter(request, "seed")) == (
            "hello",
            "wren",
            3,
        )

    def test_no_frame_is_a_clean_end(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = lambda stream, request: speech(request, 0)
        utterance = client.say("...")
        assert (utterance.samples.size, utterance.sample_rate, utterance.finish_reason) == (0, None, None)
        assert utterance.trace.succeeded
        with pytest.raises(ValueError, match="no audio"):
            utterance.save("nowhere.wav")

    def test_the_iterator_stays_at_its_end(self, client: TTSClient) -> None:
        stream = client.stream("hello")
        assert len(list(stream)) == 3
        assert list(stream) == []
        assert stream.finish_reason == "stop"

    def test_the_trace_holds_each_arrival(self, client: TTSClient) -> None:
        with client.stream("hello", stream_id="mine") as stream:
            chunks = list(stream)
        assert stream.stream_id == stream.trace.stream_id == "mine"
        arrivals = stream.trace.arrivals
        assert [arrival.seconds for arrival in arrivals] == [chunk.arrival_seconds for chunk in chunks]
        assert [arrival.samples for arrival in arrivals] == [480, 480, 480]
        assert sorted(arrival.seconds for arrival in arrivals) == [arrival.seconds for arrival in arrivals]
        assert (stream.trace.end_seconds or 0) >= arrivals[-1].seconds > 0

    def test_arrival_is_when_the_response_came_not_when_it_was_read(self, client: TTSClient) -> None:
        stream = client.stream("hello")
        assert eventually(lambda: stream.trace.end_seconds is not None)
        time.sleep(0.2)
        assert [chunk.arrival_seconds < 0.2 for chunk in stream] == [True] * 3

    def test_a_finished_stream_sends_no_cancel(self, server: ScriptedServer, client: TTSClient) -> None:
        with client.stream("hello") as stream:
            list(stream)
        assert eventually(lambda: server.calls_open == 0)
        assert server.operations() == []
        assert server.calls_broken_off == 0

    def test_a_slow_reader_loses_nothing(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = lambda stream, request: speech(request, 600)
        stream = client.stream("hello", inactivity_timeout=0.2)
        # More chunks than the client keeps: the server is held back, and its silence is no timeout.
        time.sleep(0.5)
        assert sum(len(chunk.samples) for chunk in stream) == 600 * 480


class TestErrors:
    def test_refused_at_once(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.refused
        with pytest.raises(ServerFull, match="64 streams") as caught:
            client.say("hello")
        assert caught.value.code == "FULL"

    def test_refused_before_scheduling(self, server: ScriptedServer) -> None:
        with TTSClient(server.url, model="nope") as client, pytest.raises(Unavailable, match="unknown model"):
            client.say("hello")

    def test_audio_before_an_error_is_delivered_first(
        self, server: ScriptedServer, client: TTSClient
    ) -> None:
        server.script = scripts.fails_after_two
        stream = client.stream("hello")
        assert [next(stream).index, next(stream).index] == [0, 1]
        for _ in range(2):  # and it stays an error: no later call takes the stream for complete
            with pytest.raises(InternalError, match="the codec failed"):
                next(stream)
        trace = stream.trace
        assert (trace.succeeded, trace.error_code, len(trace.arrivals)) == (False, "INTERNAL", 2)

    def test_a_hole_ends_and_cancels_the_stream(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.hole
        with pytest.raises(ProtocolError, match="hole before chunk 1"):
            client.say("hello")
        assert eventually(lambda: server.operations() == ["cancel"] and server.calls_open == 0)

    def test_what_cannot_be_sent_is_raised_before_anything_is(
        self, server: ScriptedServer, client: TTSClient
    ) -> None:
        with pytest.raises(InvalidArgument, match="seed is"):
            client.stream("hello", seed=2**70)
        with pytest.raises(TypeError, match="unknown option"):
            client.stream("hello", sede=1)  # type: ignore[call-arg]
        assert server.log == []

    def test_a_fault_while_reading_reaches_the_user(
        self, server: ScriptedServer, client: TTSClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def faulty(*_: object) -> None:
            raise RecursionError("deep")

        monkeypatch.setattr("client.protocol.raw_outputs", faulty)
        with pytest.raises(ProtocolError, match="could not be read: RecursionError"):
            client.say("hello")
        assert eventually(lambda: server.operations() == ["cancel"])

    def test_silence_is_a_timeout_and_cancels(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.one_chunk_then_silent
        stream = client.stream("hello", inactivity_timeout=0.1)
        assert next(stream).index == 0
        for _ in range(2):
            with pytest.raises(InactivityTimeout, match=r"sent nothing for 0\.1 s"):
                next(stream)
        assert stream.trace.error_code == "INACTIVITY_TIMEOUT"
        assert eventually(lambda: server.operations() == ["cancel"] and server.calls_open == 0)

    def test_the_server_dies(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.one_chunk_then_silent
        stream = client.stream("hello")
        next(stream)
        threading.Thread(target=server.stop).start()
        with pytest.raises(Unavailable, match=server.url):
            next(stream)

    def test_no_server_at_all(self) -> None:
        with TTSClient("localhost:1") as client, pytest.raises(Unavailable, match="no server at localhost:1"):
            client.say("hello")

    def test_the_server_closes_the_call_without_a_final(
        self, server: ScriptedServer, client: TTSClient
    ) -> None:
        server.closes_early = True
        server.script = lambda stream, request: iter(list(speech(request, 2))[:-1])
        with pytest.raises(ProtocolError, match=r"closed the call after 0\.04 s of audio"):
            client.say("hello")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"url": "http://localhost:8001"}, "must be HOST:PORT"),
            ({"url": ""}, "must be HOST:PORT"),
            ({"inactivity_timeout": 0}, "inactivity_timeout is 0"),
            ({"control_timeout": -1}, "control_timeout is -1"),
        ],
    )
    def test_configuration_is_checked(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            TTSClient(**change)
        with pytest.raises(InvalidArgument, match=r"keepalive\.interval_seconds is 0"):
            KeepAlive(interval_seconds=0)


class TestCancelling:
    @pytest.fixture(autouse=True)
    def endless(self, server: ScriptedServer) -> None:
        server.script = scripts.one_chunk_then_silent

    def cancelled_cleanly(self, server: ScriptedServer) -> bool:
        """op=cancel came, and the call then ended by itself instead of being broken off."""
        return eventually(lambda: server.operations() == ["cancel"] and server.calls_open == 0) and (
            server.calls_broken_off == 0
        )

    def test_break(self, server: ScriptedServer, client: TTSClient) -> None:
        for _ in client.stream("hello"):
            break
        assert self.cancelled_cleanly(server)

    def test_close(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.stream("hello", stream_id="mine")
        next(stream)
        stream.close()
        stream.close()
        assert list(stream) == []
        assert self.cancelled_cleanly(server)
        assert parameter(server.log[-1], "stream_id") == "mine"
        assert server.log[-1].model_name == "talker"
        assert (stream.trace.succeeded, stream.trace.error_code) == (False, "CANCELLED")

    def test_leaving_the_context_by_an_exception(self, server: ScriptedServer, client: TTSClient) -> None:
        with pytest.raises(ZeroDivisionError), client.stream("hello") as stream:
            next(stream)
            _ = 1 / 0
        assert self.cancelled_cleanly(server)

    def test_dropping_the_iterator(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.stream("hello")
        next(stream)
        del stream
        gc.collect()
        assert self.cancelled_cleanly(server)

    def test_closing_ends_a_wait_in_another_thread(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.stream("hello")
        received: list[int] = []
        reader = threading.Thread(target=lambda: received.extend(chunk.index for chunk in stream))
        reader.start()
        assert eventually(lambda: received == [0])
        stream.close()
        reader.join(5)
        assert not reader.is_alive()
        assert self.cancelled_cleanly(server)

    def test_before_the_first_response(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.silent
        client.stream("hello").close()
        assert self.cancelled_cleanly(server)
        # The cancel travels behind its request, never ahead of it.
        assert ["op" in request.parameters for request in server.log] == [False, True]

    def test_while_chunks_pour_in(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.endless
        stream = client.stream("hello")
        for _ in range(20):
            next(stream)
        stream.close()
        assert self.cancelled_cleanly(server)

    def test_a_deaf_server_is_hung_up_on(
        self, server: ScriptedServer, client: TTSClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "CANCEL_GRACE_SECONDS", 0.1)
        server.script = scripts.deaf
        stream = client.stream("hello")
        next(stream)
        stream.close()
        assert eventually(lambda: server.calls_open == 0)
        assert server.calls_broken_off == 1

    def test_closing_the_client_cancels_what_runs(self, server: ScriptedServer) -> None:
        client = TTSClient(server.url)
        streams = [client.stream("hello") for _ in range(3)]
        for stream in streams:
            next(stream)
        client.close()
        assert eventually(lambda: server.operations() == ["cancel"] * 3 and server.calls_open == 0)
        assert [list(stream) for stream in streams] == [[], [], []]
        for use in (lambda: client.stream("x"), client.ping):
            with pytest.raises(Unavailable, match="the client is closed"):
                use()

    def test_by_another_client(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.stream("hello", stream_id="shared")
        next(stream)
        with TTSClient(server.url) as other:
            assert other.cancel("shared").ok
            with pytest.raises(InvalidArgument, match="does not run"):
                other.cancel("unknown")
        assert [chunk.finish_reason for chunk in stream] == ["cancelled"]
        assert stream.trace.succeeded


class TestIncrementalText:
    @pytest.fixture(autouse=True)
    def talkative(self, server: ScriptedServer) -> None:
        server.script = scripts.speaks_its_text

    def test_audio_comes_while_text_is_written(self, server: ScriptedServer, client: TTSClient) -> None:
        with client.open("one two") as stream:
            assert [next(stream).index, next(stream).index] == [0, 1]
            stream.append(" three")
            assert next(stream).index == 2
            stream.append(" four")
            stream.end()
            assert [chunk.finish_reason for chunk in stream] == [None, "stop"]
        assert parameter(server.requests()[0], "text_open") is True
        assert server.operations() == ["append", "append", "end"]

    def test_all_text_first_then_all_audio(self, client: TTSClient) -> None:
        stream = client.open()
        for word in range(400):  # more chunks than the client keeps for a slow reader
            stream.append(f"{word} ")
        stream.end()
        assert len(list(stream)) == 401

    def test_another_thread_writes(self, client: TTSClient) -> None:
        stream = client.open()

        def write() -> None:
            for word in ("the", "words", "of", "a", "language", "model"):
                stream.append(word + " ")
            stream.end()

        writer = threading.Thread(target=write)
        writer.start()
        assert len(list(stream)) == 7
        writer.join()

    def test_the_request_waits_for_the_first_word(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.open("")
        stream.append(" \n")
        assert server.log == []
        stream.append("word")
        stream.append(" ")
        stream.append("more")
        stream.end()
        assert len(list(stream)) == 3
        assert text_of(server.requests()[0]) == " \nword"
        assert [text_of(request) for request in server.log if request.inputs][1:] == [" more"]

    def test_no_text_at_all(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.open()
        with pytest.raises(InvalidArgument, match="blank"):
            stream.end()
        stream.close()
        assert list(stream) == []
        assert server.log == []

    def test_silence_is_no_timeout_while_text_may_come(
        self, server: ScriptedServer, client: TTSClient
    ) -> None:
        stream = client.open("one", inactivity_timeout=0.1)
        next(stream)
        timer = threading.Timer(0.3, stream.append, (" two",))
        timer.start()
        assert next(stream).index == 1
        timer.join()

    def test_silence_after_the_end_is(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.silent
        stream = client.open("one", inactivity_timeout=0.1)
        stream.end()
        with pytest.raises(InactivityTimeout):
            next(stream)

    def test_a_refused_append_is_raised_there(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.open("one")
        next(stream)
        server.control = lambda request: iter(
            [error(request, "INVALID_ARGUMENT: target_text has 9 characters")]
        )
        with pytest.raises(InvalidArgument, match="9 characters"):
            stream.append("too long")
        server.control = lambda request: iter([status(request, ok=False, op="append", error="FULL: x")])
        with pytest.raises(ServerFull):
            stream.append("again")
        server.control = None

    def test_an_append_that_nobody_answers(self, server: ScriptedServer) -> None:
        with TTSClient(server.url, control_timeout=0.1) as client:
            stream = client.open("one")
            server.control = lambda request: iter(())
            with pytest.raises(Unavailable, match=r"did not answer append within 0\.1 s"):
                stream.append("two")
            server.control = None

    def test_append_to_a_stream_that_has_failed(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.refused
        stream = client.open("one")
        with pytest.raises(ServerFull):
            next(stream)
        with pytest.raises(ServerFull):
            stream.append("two")

    def test_append_while_the_server_dies(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.open("one")
        server.control = lambda request: iter(())
        threading.Timer(0.1, server.stop).start()
        with pytest.raises(Unavailable):
            stream.append("two")

    def test_closing_ends_an_append_that_waits(self, server: ScriptedServer, client: TTSClient) -> None:
        stream = client.open("one")
        next(stream)
        server.control = lambda request: iter(())
        threading.Timer(0.1, stream.close).start()
        with pytest.raises(Cancelled, match="the stream is closed"):
            stream.append("two")
        server.control = None

    def test_append_after_close_or_end(self, client: TTSClient) -> None:
        closed, ended = client.open("one"), client.open("one")
        closed.close()
        with pytest.raises(Cancelled, match="closed"):
            closed.append("two")
        ended.end()
        with pytest.raises(InvalidArgument, match="takes no more text"):
            ended.append("two")
        ended.end()

    def test_end_of_a_stream_that_has_ended_by_itself(
        self, server: ScriptedServer, client: TTSClient
    ) -> None:
        server.script = lambda stream, request: speech(request, 2)
        stream = client.open("one")
        assert eventually(lambda: stream.trace.end_seconds is not None)
        stream.end()
        assert len(list(stream)) == 2


class TestControl:
    def test_ping(self, client: TTSClient) -> None:
        answer = client.ping()
        assert answer.ok
        assert (answer.op, answer.active) == ("ping", 0)
        assert answer.round_trip_seconds > 0

    def test_ping_that_nobody_answers(self, server: ScriptedServer) -> None:
        server.control = lambda request: never()
        with (
            TTSClient(server.url, control_timeout=0.1) as client,
            pytest.raises(Unavailable, match="in time"),
        ):
            client.ping()

    def test_an_answer_without_status(self, server: ScriptedServer, client: TTSClient) -> None:
        server.control = lambda request: speech(request, 0)
        with pytest.raises(ProtocolError, match="without a status"):
            client.ping()

    def test_wait_ready_until_the_server_is_there(self) -> None:
        with ScriptedServer() as early:
            port = early.port
        late: list[ScriptedServer] = []
        timer = threading.Timer(0.4, lambda: late.append(ScriptedServer(port=port)))
        timer.start()
        with TTSClient(f"localhost:{port}") as client:
            assert client.wait_ready(10).ok
        timer.join()
        late[0].stop()

    def test_wait_ready_gives_up_with_the_last_reason(self, server: ScriptedServer) -> None:
        server.control = lambda request: iter([error(request, "UNAVAILABLE: the codec is not running")])
        with TTSClient(server.url) as client, pytest.raises(Unavailable, match="the codec is not running"):
            client.wait_ready(0.2)
        with TTSClient(server.url, model="nope") as client, pytest.raises(Unavailable, match="nope"):
            client.wait_ready(0.2)

    def test_drain(self, server: ScriptedServer, client: TTSClient) -> None:
        server.control = lambda request: iter([status(request, ok=True, op="drain"), *speech(request, 0)])
        assert client.drain(5).op == "drain"
        assert parameter(server.log[-1], "limit_seconds") == 5.0


class TestManyAtOnce:
    def test_32_threads_share_one_client(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = lambda stream, request: speech(request, 5 + len(text_of(request)))
        results: dict[int, int] = {}
        problems: list[TTSError] = []

        def speak(number: int) -> None:
            try:
                utterance = client.say("x" * number)
                assert np.allclose(utterance.samples, np.arange(len(utterance.samples)) % 1000 / 1000)
                results[number] = len(utterance.chunks)
            except TTSError as problem:
                problems.append(problem)

        threads = [threading.Thread(target=speak, args=(number,)) for number in range(1, 33)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert results == {number: 5 + number for number in range(1, 33)}

    def test_one_call_a_request_and_one_fails_alone(self, server: ScriptedServer, client: TTSClient) -> None:
        def script(stream: Any, request: Any) -> Any:
            return (scripts.refused if text_of(request) == "bad" else scripts.speech_slowly)(stream, request)

        server.script = script
        good = [client.stream("good") for _ in range(4)]
        assert eventually(lambda: server.calls_open == 4)
        with pytest.raises(ServerFull):
            client.say("bad")
        assert [len(list(stream)) for stream in good] == [3] * 4

    def test_nothing_is_left_after_many_cancels(self, server: ScriptedServer, client: TTSClient) -> None:
        server.script = scripts.one_chunk_then_silent
        before = threading.active_count()
        for _ in range(5):
            streams = [client.stream("hello") for _ in range(10)]
            for stream in streams:
                next(stream)
                stream.close()
        assert eventually(lambda: server.calls_open == 0 and not client._sessions)
        assert server.calls_broken_off == 0
        # The server's own threads aside, no reader is left.
        assert eventually(
            lambda: (
                not any(t.name.startswith("tts-") and t.name != "tts-reaper" for t in threading.enumerate())
            )
        )
        assert threading.active_count() < before + 100


def never() -> Any:
    time.sleep(1.0)
    yield from ()

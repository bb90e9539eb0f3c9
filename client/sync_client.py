"""The client for threads: one channel, one gRPC stream a request, any number of them at once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from client.audio import AudioChunk, Utterance, utterance_of
from client.config import CANCEL_GRACE_SECONDS, DEFAULT_URL, MAILBOX_CHUNKS, ClientConfig, KeepAlive
from client.errors import (
    Cancelled,
    InactivityTimeout,
    InvalidArgument,
    ProtocolError,
    TTSError,
    Unavailable,
    error_from_rpc,
    no_more_text,
    silent,
    unreadable,
)
from client.flow import TakenAudio
from client.protocol import ControlStatus, StreamDecoder, TextFeed, decode_status
from client.request import SpeechOptions, control_request, new_stream_id, speech_request
from client.trace import Trace, TraceRecorder
from client.wire import is_final

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class TTSClient:
    """A connection to one server. Thread-safe: any thread may start streams and read its own.

    Errors are `TTSError`s (client/errors.py). Closing the client cancels what still runs.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        model: str = "tts",
        control_model: str = "talker",
        inactivity_timeout: float | None = 30.0,
        control_timeout: float = 5.0,
        keepalive: KeepAlive | None = KeepAlive(),  # noqa: B008 - frozen
        credentials: grpc.ChannelCredentials | None = None,
        flow_window_seconds: float | None = 30.0,
    ) -> None:
        self.config = ClientConfig(
            url,
            model,
            control_model,
            inactivity_timeout,
            control_timeout,
            keepalive,
            credentials,
            flow_window_seconds,
        )
        options = self.config.channel_options()
        self._channel = (
            grpc.insecure_channel(url, options)
            if credentials is None
            else grpc.secure_channel(url, credentials, options)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._sessions: set[_Session] = set()
        self._lock = threading.Lock()
        self._reaper = _Reaper()
        self._closed = False
        weakref.finalize(self, self._reaper.stop)

    def stream(
        self, text: str, *, inactivity_timeout: float | None = None, **options: Unpack[SpeechOptions]
    ) -> SpeechStream:
        """Speak `text`. The request is sent now; iterate over the result for chunks.

        Leaving the loop, closing the stream, or dropping it cancels the work on the server.
        `inactivity_timeout` replaces the client's. Raises InvalidArgument at once for what cannot be sent;
        what the server refuses is raised by the iteration.
        """
        session = self._session(options, inactivity_timeout, text_open=False)
        session.start(text)
        return SpeechStream(session)

    def say(
        self, text: str, *, inactivity_timeout: float | None = None, **options: Unpack[SpeechOptions]
    ) -> Utterance:
        """Speak `text` and wait for all of it."""
        with self.stream(text, inactivity_timeout=inactivity_timeout, **options) as stream:
            chunks = list(stream)
            return utterance_of(chunks, stream.trace)

    def open(
        self, text: str = "", *, inactivity_timeout: float | None = None, **options: Unpack[SpeechOptions]
    ) -> TextStream:
        """A stream whose text comes bit by bit: append(), then end(), while another thread iterates.

        The request is sent with the first text that is not blank. While more text may come, silence is no
        error; the inactivity limit counts from end().
        """
        session = self._session(options, inactivity_timeout, text_open=True)
        stream = TextStream(session)
        if text:
            stream.append(text)
        return stream

    def cancel(self, stream_id: str) -> ControlStatus:
        """Cancel any stream of this server by its id. Raises InvalidArgument if it does not run."""
        return self._control("cancel", stream_id=stream_id)

    def ping(self) -> ControlStatus:
        """Ask the talker for a sign of life. Raises Unavailable if there is none within `control_timeout`."""
        return self._control("ping")

    def drain(self, limit_seconds: float, key: str | None = None) -> ControlStatus:
        """Tell the server to admit no more: open streams end, or fail after `limit_seconds`.

        key: the server's TRITONE_KEY; only one without supervisor does without.
        """
        return self._control("drain", limit_seconds=limit_seconds, key=key)

    def wait_ready(self, timeout: float = 60.0) -> ControlStatus:
        """Wait until the model is loaded and the talker answers. Raises Unavailable with the last reason."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._check_model()
                return self.ping()
            except TTSError as error:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"not ready after {timeout:g} s: {error.message}", error.detail
                    ) from error
            time.sleep(0.1)

    def close(self) -> None:
        """Cancel what still runs, wait briefly for the server to hear of it, and end the connection."""
        with self._lock:
            self._closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        deadline = time.monotonic() + CANCEL_GRACE_SECONDS
        for session in sessions:
            session.join(max(0.0, deadline - time.monotonic()))
        self._reaper.stop()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _session(
        self, options: SpeechOptions, inactivity_timeout: float | None, *, text_open: bool
    ) -> _Session:
        if inactivity_timeout is None:
            inactivity_timeout = self.config.inactivity_timeout
        return _Session(self, options, inactivity_timeout, text_open=text_open)

    def _open_call(self, session: _Session, requests: Iterator[pb.ModelInferRequest]) -> Any:
        with self._lock:
            if self._closed:
                raise Unavailable("the client is closed")
            self._sessions.add(session)
            return self._stub.ModelStreamInfer(requests)

    def _forget(self, session: _Session) -> None:
        with self._lock:
            self._sessions.discard(session)

    def _control(
        self,
        op: str,
        stream_id: str | None = None,
        limit_seconds: float | None = None,
        key: str | None = None,
    ) -> ControlStatus:
        if self._closed:
            raise Unavailable("the client is closed")
        request = control_request(
            self.config.control_model,
            op,
            new_stream_id(),
            stream_id=stream_id,
            limit_seconds=limit_seconds,
            key=key,
        )
        sent = time.perf_counter()
        status = None
        try:
            call = self._stub.ModelStreamInfer(iter([request]), timeout=self.config.control_timeout)
            for response in call:
                status = decode_status(response, time.perf_counter() - sent) or status
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.config.url) from error
        if status is None:
            raise ProtocolError(f"the talker answered {op} without a status")
        return status

    def _check_model(self) -> None:
        request = pb.ModelReadyRequest(name=self.config.model)
        try:
            answer = self._stub.ModelReady(request, timeout=self.config.control_timeout)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.config.url) from error
        if not answer.ready:
            raise Unavailable(f"model {self.config.model} is not ready")


class SpeechStream:
    """Iterator and context manager over the chunks of one request; one thread may iterate at a time.

    `close` (also: leaving the context, dropping the iterator) cancels the request on the server and never
    waits. An error is raised after the chunks that arrived before it, and again by every later call.
    """

    def __init__(self, session: _Session) -> None:
        self._session = session

    @property
    def stream_id(self) -> str:
        return self._session.stream_id

    @property
    def trace(self) -> Trace:
        """What has arrived so far, or the whole record once the stream has ended."""
        return self._session.trace()

    @property
    def finish_reason(self) -> str | None:
        """stop, length, cancelled or error once the last chunk is here, else None."""
        return self._session.decoder.finish_reason

    def close(self) -> None:
        self._session.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AudioChunk:
        chunk = self._session.next_chunk()
        if chunk is None:
            raise StopIteration
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._session.close()


class TextStream(SpeechStream):
    """A stream whose text is still being written; any thread may call `append` and `end`."""

    def append(self, text: str) -> None:
        """Add text and wait until the talker has taken it.

        Blank text waits for the words that follow it. Raises the server's error if it is refused, and
        Cancelled or InvalidArgument if the stream is closed or has ended.
        """
        self._session.append(text)

    def end(self) -> None:
        """No more text: the stream ends when all of it is spoken. Raises InvalidArgument if there is none."""
        self._session.end()


class _Session:
    """The state of one request, shared by the user's threads and the reader thread.

    Apart from `SpeechStream` so that a dropped stream is collected, and cancelled, while its reader still
    runs.
    """

    def __init__(
        self, client: TTSClient, options: SpeechOptions, inactivity_timeout: float | None, *, text_open: bool
    ) -> None:
        self._client = client
        self._config = client.config
        self._options = options
        self._inactivity_timeout = inactivity_timeout
        self.stream_id: str = options.get("stream_id") or new_stream_id()
        self._recorder = TraceRecorder(self.stream_id)
        self.decoder = StreamDecoder(self.stream_id, self._recorder)
        self._requests: queue.SimpleQueue[pb.ModelInferRequest | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._chunks: deque[AudioChunk] = deque()
        self._error: TTSError | None = None
        self._over = False
        self._closed = False
        self._text_open = text_open
        self._taken = TakenAudio(client.config.flow_window_seconds)
        self._feed = TextFeed()
        self._feeding = threading.Lock()
        self._acks: dict[str, Future[None]] = {}
        self._last_activity = time.monotonic()
        self._call: Any = None
        self._reader: threading.Thread | None = None

    def start(self, text: str) -> None:
        request = speech_request(
            self._config.model,
            self.stream_id,
            text,
            self._options,
            text_open=self._text_open,
            flow_window_seconds=self._config.flow_window_seconds,
        )
        with self._changed:
            if self._closed:
                raise Cancelled("the stream is closed")
            self._recorder = TraceRecorder(self.stream_id)
            self.decoder = StreamDecoder(self.stream_id, self._recorder)
            self._requests.put(request)
            self._last_activity = time.monotonic()
            self._call = self._client._open_call(self, iter(self._requests.get, None))
            self._reader = threading.Thread(target=self._read, name=f"tts-{self.stream_id[:8]}", daemon=True)
            self._reader.start()

    def append(self, text: str) -> None:
        with self._feeding:
            self._check_open()
            ready = self._feed.push(text)
            if ready is None:
                return
            if self._call is None:
                self.start(ready)
            else:
                self._send("append", ready)

    def end(self) -> None:
        with self._feeding:
            if self._call is None:
                raise InvalidArgument("target_text is blank: append some text before end()")
            # A stream that has ended by itself (budget, cancel) is at its end already.
            with contextlib.suppress(InvalidArgument):
                self._check_open()
                self._send("end")
            with self._changed:
                self._text_open = False
                self._last_activity = time.monotonic()
                self._changed.notify_all()

    def next_chunk(self) -> AudioChunk | None:
        """Waits for a chunk; None at the end. Raises the stream's error, or InactivityTimeout."""
        with self._changed:
            while True:
                if self._closed:
                    if isinstance(self._error, InactivityTimeout):
                        raise self._error
                    return None
                if self._chunks:
                    if len(self._chunks) >= MAILBOX_CHUNKS:
                        # We held the server back, so its silence until now does not count.
                        self._last_activity = time.monotonic()
                        self._changed.notify_all()
                    chunk = self._chunks.popleft()
                    self._acknowledge_audio(chunk)
                    return chunk
                if self._error is not None:
                    raise self._error
                if self._over:
                    return None
                self._wait()

    def close(self) -> None:
        """Never waits: the cancel request goes out behind the scenes, the reaper ends the call if need be."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._chunks.clear()
            self._changed.notify_all()
            if self._call is None or self._over:
                return
            self._recorder.ended(Cancelled.code, "closed by the client")
            self._fail_acks(Cancelled("the stream is closed"))
            self._cancel()

    def join(self, timeout: float) -> None:
        if self._reader is not None:
            self._reader.join(timeout)

    def trace(self) -> Trace:
        with self._changed:
            return self._recorder.snapshot()

    def _wait(self) -> None:
        """One wait for news. The inactivity limit runs only while the server owes us something."""
        if self._inactivity_timeout is None or self._text_open:
            self._changed.wait()
            return
        left = self._last_activity + self._inactivity_timeout - time.monotonic()
        if left > 0:
            self._changed.wait(left)
            return
        error = silent(self._config.url, self._inactivity_timeout)
        self._recorder.ended(error.code, error.message)
        self._error = error
        self.close()

    def _acknowledge_audio(self, chunk: AudioChunk) -> None:
        position = self._taken.position_to_acknowledge(chunk)
        if position is None or self._over:
            return
        # The server may have waited for us, so its silence until now does not count.
        self._last_activity = time.monotonic()
        self._requests.put(
            control_request(
                self._config.control_model,
                "ack",
                f"{self.stream_id}/ack",
                stream_id=self.stream_id,
                position=position,
            )
        )

    def _cancel(self) -> None:
        self._requests.put(
            control_request(
                self._config.control_model, "cancel", f"{self.stream_id}/cancel", stream_id=self.stream_id
            )
        )
        self._requests.put(None)
        self._client._reaper.end_later(self._call)

    def _check_open(self) -> None:
        with self._changed:
            if self._closed:
                raise Cancelled("the stream is closed")
            if self._error is not None:
                raise self._error
            if self._over or not self._text_open:
                raise no_more_text()

    def _send(self, op: str, text: str | None = None) -> None:
        """A control request on the stream's own call: the server reads it after what was sent before."""
        ack: Future[None] = Future()
        request_id = f"{self.stream_id}/{op}-{new_stream_id()}"
        request = control_request(
            self._config.control_model, op, request_id, stream_id=self.stream_id, text=text
        )
        with self._changed:
            if self._over:
                raise self._error or no_more_text()
            self._acks[request_id] = ack
            self._changed.notify_all()
            self._requests.put(request)
        try:
            ack.result(self._config.control_timeout)
        except FutureTimeout:
            raise Unavailable(
                f"the talker did not answer {op} within {self._config.control_timeout:g} s"
            ) from None
        finally:
            with self._changed:
                self._acks.pop(request_id, None)

    def _read(self) -> None:
        error: TTSError | None = None
        try:
            for response in self._call:
                self._take(response)
            if not self._closed:
                self.decoder.check_ended()
        except TTSError as problem:
            error = problem
        except grpc.RpcError as problem:
            error = error_from_rpc(problem, self._config.url)
        except Exception as problem:
            # A thread that dies silently would leave its user waiting.
            error = unreadable(problem)
        # A response that breaks the contract ends our side only: the server still has to be told.
        if isinstance(error, ProtocolError) and not self._closed:
            self._cancel()
        self._finish(error)
        self._requests.put(None)
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass
        self._client._forget(self)

    def _take(self, response: pb.ModelStreamInferResponse) -> None:
        with self._changed:
            self._last_activity = time.monotonic()
            request_id = response.infer_response.id
            if request_id.startswith(f"{self.stream_id}/"):
                self._acknowledge(request_id, response)
                return
            if self._closed:
                return
            chunk = self.decoder.decode(response)
            # Not while somebody waits for an acknowledgement: it may stand behind this chunk.
            while chunk and len(self._chunks) >= MAILBOX_CHUNKS and not self._acks and not self._closed:
                self._changed.wait()
            if chunk is not None and not self._closed:
                self._chunks.append(chunk)
            if self.decoder.finished:
                self.decoder.check_complete()
                self._finish(None)
                self._requests.put(None)
            self._changed.notify_all()

    def _acknowledge(self, request_id: str, response: pb.ModelStreamInferResponse) -> None:
        ack = self._acks.get(request_id)
        if ack is None or ack.done():
            return
        try:
            if decode_status(response, 0.0) is not None or is_final(response.infer_response):
                ack.set_result(None)
        except TTSError as error:
            ack.set_exception(error)

    def _finish(self, error: TTSError | None) -> None:
        with self._changed:
            if not self._over:
                self._over = True
                if not self._closed:
                    self._error = error
                self._recorder.ended(error.code if error else None, error.message if error else "")
            self._fail_acks(self._error or no_more_text())
            self._changed.notify_all()

    def _fail_acks(self, error: TTSError) -> None:
        for ack in self._acks.values():
            if not ack.done():
                ack.set_exception(error)


class _Reaper:
    """One thread that ends calls whose cancel request the server has not honoured in time."""

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[tuple[float, Callable[[], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tts-reaper", daemon=True)
        self._thread.start()

    def end_later(self, call: Any) -> None:
        self._due.put((time.monotonic() + CANCEL_GRACE_SECONDS, call.cancel))

    def stop(self) -> None:
        self._due.put(None)

    def _run(self) -> None:
        # All deadlines are the same time away, so the queue is in order of deadline.
        for due, cancel in iter(self._due.get, None):
            time.sleep(max(0.0, due - time.monotonic()))
            cancel()

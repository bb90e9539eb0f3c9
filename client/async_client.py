"""The client for asyncio: the same contract as client/sync_client.py on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
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


class AsyncTTSClient:
    """A connection to one server, for one event loop; any number of streams at once.

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
        self._channel: grpc.aio.Channel | None = None
        self._connected: Any = None
        self._sessions: set[_Session] = set()
        self._closed = False

    def stream(
        self, text: str, *, inactivity_timeout: float | None = None, **options: Unpack[SpeechOptions]
    ) -> AsyncSpeechStream:
        """Speak `text`. The request is sent now (a running event loop is needed); `async for` gives the
        chunks.

        Leaving the context, closing the stream, dropping it, or cancelling the task that waits for a chunk
        cancels the work on the server. `inactivity_timeout` replaces the client's. Raises InvalidArgument at
        once for what cannot be sent; what the server refuses is raised by the iteration.
        """
        session = self._session(options, inactivity_timeout, text_open=False)
        session.start(text)
        return AsyncSpeechStream(session)

    async def say(
        self, text: str, *, inactivity_timeout: float | None = None, **options: Unpack[SpeechOptions]
    ) -> Utterance:
        """Speak `text` and wait for all of it."""
        async with self.stream(text, inactivity_timeout=inactivity_timeout, **options) as stream:
            chunks = [chunk async for chunk in stream]
            return utterance_of(chunks, stream.trace)

    def open(
        self, text: str = "", *, inactivity_timeout: float | None = None, **options: Unpack[SpeechOptions]
    ) -> AsyncTextStream:
        """A stream whose text comes bit by bit: append(), then end(), while another task iterates.

        The request is sent with the first text that is not blank. While more text may come, silence is no
        error; the inactivity limit counts from end().
        """
        session = self._session(options, inactivity_timeout, text_open=True)
        session.open(text)
        return AsyncTextStream(session)

    async def cancel(self, stream_id: str) -> ControlStatus:
        """Cancel any stream of this server by its id. Raises InvalidArgument if it does not run."""
        return await self._control("cancel", stream_id=stream_id)

    async def ping(self) -> ControlStatus:
        """Ask the talker for a sign of life. Raises Unavailable if there is none within `control_timeout`."""
        return await self._control("ping")

    async def drain(self, limit_seconds: float, key: str | None = None) -> ControlStatus:
        """Tell the server to admit no more: open streams end, or fail after `limit_seconds`.

        key: the server's TRITONE_KEY; only one without supervisor does without.
        """
        return await self._control("drain", limit_seconds=limit_seconds, key=key)

    async def wait_ready(self, timeout: float = 60.0) -> ControlStatus:
        """Wait until the model is loaded and the talker answers. Raises Unavailable with the last reason."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                await self._check_model()
                return await self.ping()
            except TTSError as error:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"not ready after {timeout:g} s: {error.message}", error.detail
                    ) from error
            await asyncio.sleep(0.1)

    async def aclose(self) -> None:
        """Cancel what still runs, wait briefly for the server to hear of it, and end the connection."""
        self._closed = True
        sessions = list(self._sessions)
        for session in sessions:
            session.close()
        await asyncio.gather(*(session.join() for session in sessions))
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _stub(self) -> Any:
        """Connects at first use: a channel belongs to the event loop that runs then."""
        if self._closed:
            raise Unavailable("the client is closed")
        if self._connected is None:
            url, credentials = self.config.url, self.config.credentials
            options = self.config.channel_options()
            self._channel = (
                grpc.aio.insecure_channel(url, options)
                if credentials is None
                else grpc.aio.secure_channel(url, credentials, options)
            )
            self._connected = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._connected

    def _session(
        self, options: SpeechOptions, inactivity_timeout: float | None, *, text_open: bool
    ) -> _Session:
        if inactivity_timeout is None:
            inactivity_timeout = self.config.inactivity_timeout
        return _Session(self, options, inactivity_timeout, text_open=text_open)

    def _open_call(self, session: _Session, requests: AsyncIterator[pb.ModelInferRequest]) -> Any:
        call = self._stub().ModelStreamInfer(requests)
        self._sessions.add(session)
        return call

    def _forget(self, session: _Session) -> None:
        self._sessions.discard(session)

    async def _control(
        self,
        op: str,
        stream_id: str | None = None,
        limit_seconds: float | None = None,
        key: str | None = None,
    ) -> ControlStatus:
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
            call = self._stub().ModelStreamInfer(iter([request]), timeout=self.config.control_timeout)
            async for response in call:
                status = decode_status(response, time.perf_counter() - sent) or status
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.config.url) from error
        if status is None:
            raise ProtocolError(f"the talker answered {op} without a status")
        return status

    async def _check_model(self) -> None:
        request = pb.ModelReadyRequest(name=self.config.model)
        try:
            answer = await self._stub().ModelReady(request, timeout=self.config.control_timeout)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.config.url) from error
        if not answer.ready:
            raise Unavailable(f"model {self.config.model} is not ready")


class AsyncSpeechStream:
    """Async iterator and context manager over the chunks of one request; one task may iterate at a time.

    `close` (also: leaving the context, dropping the iterator, cancelling the task that waits for a chunk)
    cancels the request on the server and never waits. An error is raised after the chunks that arrived before
    it, and again by every later call.
    """

    def __init__(self, session: _Session) -> None:
        self._session = session

    @property
    def stream_id(self) -> str:
        return self._session.stream_id

    @property
    def trace(self) -> Trace:
        """What has arrived so far, or the whole record once the stream has ended."""
        return self._session.recorder.snapshot()

    @property
    def finish_reason(self) -> str | None:
        """stop, length, cancelled or error once the last chunk is here, else None."""
        return self._session.decoder.finish_reason

    def close(self) -> None:
        self._session.close()

    async def aclose(self) -> None:
        """`close` under the name that `contextlib.aclosing` looks for."""
        self._session.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioChunk:
        try:
            chunk = await self._session.next_chunk()
        except asyncio.CancelledError:
            self._session.close()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The collector may run in any thread, the session belongs to its loop.
        self._session.close_from_anywhere()


class AsyncTextStream(AsyncSpeechStream):
    """A stream whose text is still being written; any task may call `append` and `end`."""

    async def append(self, text: str) -> None:
        """Add text and wait until the talker has taken it.

        Blank text waits for the words that follow it. Raises the server's error if it is refused, and
        Cancelled or InvalidArgument if the stream is closed or has ended.
        """
        await self._session.append(text)

    async def end(self) -> None:
        """No more text: the stream ends when all of it is spoken. Raises InvalidArgument if there is none."""
        await self._session.end()


class _Session:
    """The state of one request, apart from the stream so that a dropped stream is collected meanwhile."""

    def __init__(
        self,
        client: AsyncTTSClient,
        options: SpeechOptions,
        inactivity_timeout: float | None,
        *,
        text_open: bool,
    ) -> None:
        self._client = client
        self._config = client.config
        self._options = options
        self._inactivity_timeout = inactivity_timeout
        self.stream_id: str = options.get("stream_id") or new_stream_id()
        self.recorder = TraceRecorder(self.stream_id)
        self.decoder = StreamDecoder(self.stream_id, self.recorder)
        self._loop = asyncio.get_running_loop()
        self._requests: asyncio.Queue[pb.ModelInferRequest | None] = asyncio.Queue()
        self._chunks: deque[AudioChunk] = deque()
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        self._error: TTSError | None = None
        self._over = False
        self._closed = False
        self._text_open = text_open
        self._taken = TakenAudio(client.config.flow_window_seconds)
        self._feed = TextFeed()
        self._feeding = asyncio.Lock()
        self._acks: dict[str, asyncio.Future[None]] = {}
        self._last_activity = time.monotonic()
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._reaper: asyncio.TimerHandle | None = None

    def start(self, text: str) -> None:
        request = speech_request(
            self._config.model,
            self.stream_id,
            text,
            self._options,
            text_open=self._text_open,
            flow_window_seconds=self._config.flow_window_seconds,
        )
        self.recorder = TraceRecorder(self.stream_id)
        self.decoder = StreamDecoder(self.stream_id, self.recorder)
        self._requests.put_nowait(request)
        self._last_activity = time.monotonic()
        self._call = self._client._open_call(self, self._outgoing())
        self._reader = self._loop.create_task(self._read(), name=f"tts-{self.stream_id[:8]}")

    def open(self, text: str) -> None:
        ready = self._feed.push(text)
        if ready is not None:
            self.start(ready)

    async def append(self, text: str) -> None:
        async with self._feeding:
            self._check_open()
            if self._call is None:
                self.open(text)
                return
            ready = self._feed.push(text)
            if ready is not None:
                await self._send("append", ready)

    async def end(self) -> None:
        async with self._feeding:
            if self._call is None:
                raise InvalidArgument("target_text is blank: append some text before end()")
            # A stream that has ended by itself (budget, cancel) is at its end already.
            with contextlib.suppress(InvalidArgument):
                self._check_open()
                await self._send("end")
            self._text_open = False
            self._last_activity = time.monotonic()
            self._news.set()

    async def next_chunk(self) -> AudioChunk | None:
        """Waits for a chunk; None at the end. Raises the stream's error, or InactivityTimeout."""
        while True:
            if self._closed:
                if isinstance(self._error, InactivityTimeout):
                    raise self._error
                return None
            if self._chunks:
                if len(self._chunks) >= MAILBOX_CHUNKS:
                    # We held the server back, so its silence until now does not count.
                    self._last_activity = time.monotonic()
                    self._space.set()
                chunk = self._chunks.popleft()
                self._acknowledge_audio(chunk)
                return chunk
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            await self._wait()

    def close(self) -> None:
        """Never waits: the cancel request goes out in the background, a timer ends the call if need be."""
        if self._closed:
            return
        self._closed = True
        self._chunks.clear()
        self._news.set()
        self._space.set()
        if self._call is None or self._over:
            return
        self.recorder.ended(Cancelled.code, "closed by the client")
        self._fail_acks(Cancelled("the stream is closed"))
        self._cancel()

    def close_from_anywhere(self) -> None:
        if not self._closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    async def join(self) -> None:
        """Wait for the reader; the timer that `close` started bounds this."""
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=CANCEL_GRACE_SECONDS + 1.0)

    async def _wait(self) -> None:
        """One wait for news. The inactivity limit runs only while the server owes us something."""
        self._news.clear()
        if self._inactivity_timeout is None or self._text_open:
            await self._news.wait()
            return
        left = self._last_activity + self._inactivity_timeout - time.monotonic()
        if left > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)
            return
        error = silent(self._config.url, self._inactivity_timeout)
        self.recorder.ended(error.code, error.message)
        self._error = error
        self.close()

    def _acknowledge_audio(self, chunk: AudioChunk) -> None:
        position = self._taken.position_to_acknowledge(chunk)
        if position is None or self._over:
            return
        # The server may have waited for us, so its silence until now does not count.
        self._last_activity = time.monotonic()
        self._requests.put_nowait(
            control_request(
                self._config.control_model,
                "ack",
                f"{self.stream_id}/ack",
                stream_id=self.stream_id,
                position=position,
            )
        )

    def _cancel(self) -> None:
        self._requests.put_nowait(
            control_request(
                self._config.control_model, "cancel", f"{self.stream_id}/cancel", stream_id=self.stream_id
            )
        )
        self._requests.put_nowait(None)
        self._reaper = self._loop.call_later(CANCEL_GRACE_SECONDS, self._call.cancel)

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("the stream is closed")
        if self._error is not None:
            raise self._error
        if self._over or not self._text_open:
            raise no_more_text()

    async def _send(self, op: str, text: str | None = None) -> None:
        """A control request on the stream's own call: the server reads it after what was sent before."""
        ack: asyncio.Future[None] = self._loop.create_future()
        request_id = f"{self.stream_id}/{op}-{new_stream_id()}"
        request = control_request(
            self._config.control_model, op, request_id, stream_id=self.stream_id, text=text
        )
        self._acks[request_id] = ack
        self._space.set()
        self._requests.put_nowait(request)
        try:
            await asyncio.wait_for(ack, self._config.control_timeout)
        except asyncio.TimeoutError:
            raise Unavailable(
                f"the talker did not answer {op} within {self._config.control_timeout:g} s"
            ) from None
        finally:
            del self._acks[request_id]

    async def _outgoing(self) -> AsyncIterator[pb.ModelInferRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        error: TTSError | None = None
        try:
            async for response in self._call:
                await self._take(response)
            if not self._closed:
                self.decoder.check_ended()
        except TTSError as problem:
            error = problem
        except grpc.RpcError as problem:
            error = error_from_rpc(problem, self._config.url)
        except asyncio.CancelledError:
            # Either the timer ended the call, or the event loop is being shut down.
            self._call.cancel()
            error = Cancelled("the call was ended by the client")
        except Exception as problem:
            # A task that dies silently would leave its user waiting.
            error = unreadable(problem)
        # A response that breaks the contract ends our side only: the server still has to be told.
        if isinstance(error, ProtocolError) and not self._closed:
            self._cancel()
        self._finish(error)
        self._requests.put_nowait(None)
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            async for _ in self._call:
                pass
        if self._reaper is not None:
            self._reaper.cancel()
        self._client._forget(self)

    async def _take(self, response: pb.ModelStreamInferResponse) -> None:
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
            self._space.clear()
            await self._space.wait()
        if chunk is not None and not self._closed:
            self._chunks.append(chunk)
        if self.decoder.finished:
            self.decoder.check_complete()
            self._finish(None)
            self._requests.put_nowait(None)
        self._news.set()

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
        if not self._over:
            self._over = True
            if not self._closed:
                self._error = error
            self.recorder.ended(error.code if error else None, error.message if error else "")
        self._fail_acks(self._error or no_more_text())
        self._news.set()

    def _fail_acks(self, error: TTSError) -> None:
        for ack in self._acks.values():
            if not ack.done():
                ack.set_exception(error)

"""The load generator: one process, one event loop, one gRPC call a request.

It reads with the client package's own protocol code, so a hole, an overlap or a response out of order is an
error of that request. Its own CPU time stands in every report: a generator that is the bottleneck measures
itself.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from bench.arrivals import ClosedLoop, Load, OpenLoop
from client.audio import AudioChunk
from client.config import ClientConfig
from client.errors import InternalError, TTSError, error_from_message, error_from_rpc
from client.metrics import StreamMetrics, measure
from client.protocol import StreamDecoder
from client.request import new_stream_id, speech_request
from client.trace import Trace, TraceRecorder
from client.wire import is_final

REQUEST_TIMEOUT = 300.0


class AudioCheck(Protocol):
    """Looks at the audio of one stream while it arrives."""

    fault: str | None

    def chunk(self, chunk: AudioChunk) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """One request: its text, options (client.request.SpeechOptions) and, where the audio is known, its
    check."""

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    check: AudioCheck | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a request. sent: seconds since the round began. fault: what its check found."""

    sent: float
    trace: Trace
    metrics: StreamMetrics
    check: AudioCheck | None = None

    @property
    def fault(self) -> str | None:
        return self.check.fault if self.check else None


@dataclass(frozen=True)
class Round:
    """All requests of one round. wall_seconds: from the first request's sending to the last one's end.
    cpu_seconds: of this process meanwhile."""

    load: Load
    outcomes: tuple[Outcome, ...]
    wall_seconds: float
    cpu_seconds: float

    @property
    def cpu_share(self) -> float:
        """CPU time of the load generator as a share of one core; near 1 the figures are its own."""
        return self.cpu_seconds / self.wall_seconds


class LoadGenerator:
    """A connection to the server under test; an async context manager."""

    def __init__(self, url: str, model: str = "tts", timeout: float = REQUEST_TIMEOUT) -> None:
        self._url = url
        self._model = model
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def __aenter__(self) -> LoadGenerator:
        options = ClientConfig(self._url, keepalive=None).channel_options()
        self._channel = grpc.aio.insecure_channel(self._url, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._channel is not None
        await self._channel.close()

    async def run(
        self, load: Load, jobs: Sequence[Job], seed: int = 0, progress: Callable[[], None] = lambda: None
    ) -> Round:
        """Send all jobs under that load and wait for their ends. `progress` is called after each.

        seed: of an open loop's arrival times.
        """
        gc.collect()
        cpu, began = time.process_time(), time.perf_counter()
        outcomes: list[Outcome | None] = [None] * len(jobs)

        async def send(number: int) -> None:
            outcomes[number] = await self._speak(jobs[number], began)
            progress()

        if isinstance(load, ClosedLoop):
            await self._closed(load, len(jobs), send)
        else:
            await self._open(load, len(jobs), seed, send)
        wall = time.perf_counter() - began
        done = tuple(outcome for outcome in outcomes if outcome is not None)
        return Round(load, done, wall, time.process_time() - cpu)

    async def _closed(self, load: ClosedLoop, count: int, send: Callable[[int], Any]) -> None:
        numbers = iter(range(count))

        async def client() -> None:
            for number in numbers:
                await send(number)

        await asyncio.gather(*(client() for _ in range(min(load.concurrency, count))))

    async def _open(self, load: OpenLoop, count: int, seed: int, send: Callable[[int], Any]) -> None:
        began = time.perf_counter()
        tasks = []
        for number, start in enumerate(load.starts(count, seed)):
            await asyncio.sleep(max(0.0, began + start - time.perf_counter()))
            tasks.append(asyncio.create_task(send(number)))
        await asyncio.gather(*tasks)

    async def _speak(self, job: Job, began: float) -> Outcome:
        stream_id = new_stream_id()
        request = speech_request(self._model, stream_id, job.text, job.options)
        recorder = TraceRecorder(stream_id)
        sent = time.perf_counter() - began
        try:
            await self._receive(request, StreamDecoder(stream_id, recorder), job.check)
            recorder.ended()
        except TTSError as error:
            recorder.ended(error.code, error.message)
        except grpc.RpcError as error:
            failure = error_from_rpc(error, self._url)
            recorder.ended(failure.code, failure.message)
        trace = recorder.snapshot()
        return Outcome(sent, trace, measure(trace), job.check)

    async def _receive(
        self, request: pb.ModelInferRequest, decoder: StreamDecoder, check: AudioCheck | None
    ) -> None:
        call = self._stub.ModelStreamInfer(iter([request]), timeout=self._timeout)
        async for response in call:
            chunk = decoder.decode(response)
            if chunk is not None and check is not None:
                check.chunk(chunk)
        decoder.check_ended()
        decoder.check_complete()
        if check is not None:
            check.end()

    async def count(self, requests: Iterable[pb.ModelInferRequest], concurrency: int) -> Counted:
        """Closed loop for throughput: take the responses and only count their bytes, as cheaply as Python
        can."""
        cpu, began = time.process_time(), time.perf_counter()
        queue, total = iter(requests), Counted()

        async def client() -> None:
            for request in queue:
                await self._count_one(request, total)

        await asyncio.gather(*(client() for _ in range(concurrency)))
        total.wall_seconds = time.perf_counter() - began
        total.cpu_seconds = time.process_time() - cpu
        return total

    async def _count_one(self, request: pb.ModelInferRequest, total: Counted) -> None:
        sent, first = time.perf_counter(), None
        try:
            async for message in self._stub.ModelStreamInfer(iter([request]), timeout=self._timeout):
                if message.error_message:
                    raise error_from_message(message.error_message)
                response = message.infer_response
                for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
                    if output.name == "waveform" and content:
                        first = first or time.perf_counter()
                        total.samples += len(content) // 4
                        total.chunks += 1
                if is_final(response):
                    break
            if first is None:
                raise InternalError("the stream ended without audio")
            total.first_seconds.append(first - sent)
        except TTSError as error:
            total.errors.append(error.message)
        except grpc.RpcError as error:
            total.errors.append(error_from_rpc(error, self._url).message)


@dataclass
class Counted:
    """What `LoadGenerator.count` took in. first_seconds: until each request's first audio."""

    samples: int = 0
    chunks: int = 0
    first_seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

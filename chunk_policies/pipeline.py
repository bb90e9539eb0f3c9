"""The pipeline in virtual time: talker steps, stream buffers, codec calls, packets."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from chunk_policies.machine import Machine
from chunk_policies.metrics import StreamQuality, stream_quality
from chunk_policies.policy import ChunkPolicy
from chunk_policies.schedule import ChunkSchedule
from chunk_policies.stream_buffer import StreamBuffer


@dataclass(frozen=True)
class Workload:
    """A closed loop: each of ``concurrency`` clients sends its next request when the last one is complete.

    Attributes:
        concurrency: clients, and stream slots of the server.
        requests: requests in all.
        frames: mean length of a request's audio, in frames.
        frames_spread: its spread, as sigma of a log-normal distribution.
        windowed: whether the codec keeps no state, so that windows carry left context.
        seed: of every random draw; lengths and prefill times depend on nothing else, so that schedules are
            compared on the same requests.
    """

    concurrency: int = 8
    requests: int = 40
    frames: float = 125.0
    frames_spread: float = 0.2
    windowed: bool = False
    seed: int = 0


@dataclass(frozen=True)
class _Call:
    """One chunk on its way through the codec."""

    ready: float
    new: int
    frames: int
    context: int


@dataclass(eq=False)
class PlayedStream:
    """One request as it was played.

    Attributes:
        start: when it arrived.
        frames: its length.
        sizes: new frames of each chunk sent to the codec.
        packets: (arrival, seconds of audio) of each packet.
        policy: the stream's policy, with its telemetry.
    """

    start: float
    frames: int
    policy: ChunkPolicy
    buffer: StreamBuffer[None]
    sizes: list[int] = field(default_factory=list)
    packets: list[tuple[float, float]] = field(default_factory=list)
    produced: int = 0
    audio: float = 0.0
    waiting: deque[_Call] = field(default_factory=deque)
    decoding: bool = False

    def quality(self) -> StreamQuality:
        """The streaming quality of this request."""
        return stream_quality(self.start, self.packets)


def play(machine: Machine, schedule: ChunkSchedule, workload: Workload) -> list[PlayedStream]:
    """Play ``workload`` on ``machine`` with ``schedule``; streams in the order in which they arrived."""
    return _Pipeline(machine, schedule, workload).run()


class _Pipeline:
    def __init__(self, machine: Machine, schedule: ChunkSchedule, workload: Workload) -> None:
        self._machine = machine
        self._schedule = schedule
        self._workload = workload
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_number = count()
        self._streams: list[PlayedStream] = []
        self._running: list[PlayedStream] = []
        self._queued: list[PlayedStream] = []
        self._talker_busy = False
        self._codec_busy = False
        self._jitter = random.Random(f"jitter {workload.seed}")

    def run(self) -> list[PlayedStream]:
        for _ in range(min(self._workload.concurrency, self._workload.requests)):
            self._arrive()
        while self._events:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                heapq.heappop(self._events)[2]()
            self._start_step()
            self._start_call()
        return self._streams

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._event_number), event))

    def _clock(self) -> float:
        return self._now

    def _arrive(self) -> None:
        machine, workload = self._machine, self._workload
        draw = random.Random(f"request {workload.seed} {len(self._streams)}")
        frames = max(1, round(workload.frames * _spread(draw, workload.frames_spread)))
        prefill = machine.prefill * _spread(draw, machine.prefill_spread)
        open_streams = sum(1 for stream in self._streams if not _complete(stream))
        policy = self._schedule.policy(
            clock=self._clock,
            frame_seconds=machine.frame_seconds,
            load=(open_streams + 1) / workload.concurrency,
            windowed=workload.windowed,
            context_cost_seconds=machine.codec_context_frame * self._schedule.left_context,
        )
        stream = PlayedStream(self._now, frames, policy, StreamBuffer(policy))
        self._streams.append(stream)
        self._after(prefill, lambda: self._running.append(stream))

    def _start_step(self) -> None:
        if self._running and not self._talker_busy:
            self._talker_busy = True
            batch = list(self._running)
            seconds = self._machine.step_seconds(len(batch)) * _spread(self._jitter, self._machine.jitter)
            self._after(seconds, lambda: self._end_step(batch))

    def _end_step(self, batch: list[PlayedStream]) -> None:
        self._talker_busy = False
        for stream in batch:
            stream.produced += 1
            stream.policy.observe_frame(self._now)
            stream.buffer.put(None)
            if stream.produced == stream.frames:
                stream.buffer.signal_done()
                self._running.remove(stream)
            for call in self._calls(stream):
                if not stream.waiting and not stream.decoding:
                    self._queued.append(stream)
                stream.waiting.append(call)
                stream.sizes.append(call.new)

    def _calls(self, stream: PlayedStream) -> Iterator[_Call]:
        while stream.buffer.has_chunk_ready():
            chunk = stream.buffer.pop_chunk()
            if chunk.num_new:
                frames = chunk.num_new if self._workload.windowed else self._padded(chunk.num_new)
                yield _Call(self._now, chunk.num_new, frames, chunk.context_items)

    def _padded(self, frames: int) -> int:
        """A stateful codec pads a last chunk to the next size it is warmed for."""
        return next((size for size in self._schedule.ladder if size >= frames), frames)

    def _start_call(self) -> None:
        if not self._queued or self._codec_busy:
            return
        self._codec_busy = True
        self._queued.sort(key=self._urgency)
        head = self._queued[0].waiting[0]
        length = head.frames + head.context
        rows = [
            stream
            for stream in self._queued
            if stream.waiting[0].frames + stream.waiting[0].context == length
        ][: self._machine.codec_batch]
        for stream in rows:
            stream.decoding = True
            self._queued.remove(stream)
        seconds = self._machine.codec_seconds(len(rows), head.frames, head.context)
        self._after(seconds * _spread(self._jitter, self._machine.jitter), lambda: self._end_call(rows))

    def _urgency(self, stream: PlayedStream) -> tuple[float, ...]:
        ready = stream.waiting[0].ready
        if self._machine.order == "fifo":
            return (ready,)
        if self._machine.order == "first-chunks":
            return (float(bool(stream.packets)), ready)
        return (stream.packets[0][0] + stream.audio if stream.packets else ready, ready)

    def _end_call(self, rows: list[PlayedStream]) -> None:
        self._codec_busy = False
        for stream in rows:
            seconds = stream.waiting.popleft().new * self._machine.frame_seconds
            stream.decoding = False
            stream.packets.append((self._now, seconds))
            stream.audio += seconds
            if stream.waiting:
                self._queued.append(stream)
            elif _complete(stream) and len(self._streams) < self._workload.requests:
                self._arrive()


def _complete(stream: PlayedStream) -> bool:
    return stream.buffer.finished and not stream.waiting and not stream.decoding


def _spread(draw: random.Random, sigma: float) -> float:
    """A factor with mean 1."""
    return math.exp(draw.gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0

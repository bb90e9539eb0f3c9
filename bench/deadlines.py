"""Which chunk to decode first: by playback deadline, by arrival, or first chunks first.

The real engines (admission, batch forming, orders) run over models that do nothing, in simulated time: a
talker step and a codec call take as long as they are told to. Streams come in a closed loop with lengths at
random, and a chunk is late by what the listener's playback, which started with the first chunk and never
pauses, has run past its start.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from backends.codec import Codec, DecodeOutput
from backends.codec_engine import BATCH_SLACK, CodecEngine, CodecJob
from backends.frames import FrameSpec
from backends.graphs import EagerCapture
from backends.talker import NoiseSpec, Prompt, SamplingTable, SpeechRequest, StepFlag, StepOutput, Talker
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import EngineConfig
from chunk_policies import ChunkSchedule, StreamBuffer

FRAME_SECONDS = 0.04
SPEC = FrameSpec("codes", 1, (2,), 1000, 1, 40)
Order = Literal["deadline", "arrival", "first chunks first"]
ORDERS: tuple[Order, ...] = ("deadline", "arrival", "first chunks first")


class IdleTalker(Talker):
    """Makes as many frames as the prompt's positions say."""

    spec = SPEC
    noise = NoiseSpec(0)
    device = torch.device("cpu")

    def allocate(self, max_slots: int, max_length: int) -> None:
        self.left = torch.zeros(max_slots + 1, dtype=torch.int64)

    def slot_bytes(self) -> int:
        return 8

    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        return Prompt(torch.tensor([int(text)]), max_frames=10**6)

    def positions(self, prompt: Prompt, frames: int) -> int:
        return 1

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        self.left[slots] = inputs[:, 0]

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        left = self.left[slots] - 1
        self.left[slots] = left
        flags = torch.where(left <= 0, int(StepFlag.VALID | StepFlag.ENDED), int(StepFlag.VALID))
        return StepOutput(torch.zeros_like(slots)[:, None], flags.int())


class IdleCodec(Codec):
    """Silence of the right length."""

    spec = SPEC
    mode = "state"
    device = torch.device("cpu")

    def allocate(self, slots: int) -> None:
        self.heard = torch.zeros(slots + 1, dtype=torch.int64)

    def slot_bytes(self) -> int:
        return 8

    def open(self, slots: torch.Tensor) -> None:
        self.heard[slots] = 0

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        spf = self.spec.samples_per_frame
        first = self.heard[slots]
        self.heard[slots] = first + lengths
        return DecodeOutput(torch.zeros(len(slots), 1, frames.shape[1] * spf), first * spf, lengths * spf)


@dataclass(frozen=True)
class Load:
    """streams: open at once. step, decode: seconds of a talker step and of a codec call, whatever the batch.
    talker_batch, codec_batch: rows that one takes. finished: streams to end before the figures are read."""

    step: float
    decode: float
    streams: int = 64
    talker_batch: int = 64
    codec_batch: int = 8
    credit: int = 4
    slack: float = BATCH_SLACK
    finished: int = 600
    chunks: str = "2,4,8,15"


@dataclass(eq=False)
class Listener:
    number: int
    stream: SpeechStream
    buffer: StreamBuffer[np.ndarray]
    asked: float
    sent: int = 0  # chunks
    decoded: int = 0
    frames_sent: int = 0
    frames_heard: int = 0
    started: float | None = None
    done: bool = False


@dataclass
class Figures:
    """Of one order under one load. waits: seconds to the first chunk of each stream. late: of chunks that
    came more than 1 ms late, by how much. chunks: all."""

    waits: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    chunks: int = 0
    rows: float = 0.0  # of a codec call, on average
    broken: set[int] = field(default_factory=set)  # streams with a chunk later than 100 ms

    def row(self) -> list[str]:
        def at(values: list[float], share: float) -> str:
            return f"{np.quantile(values, share) * 1e3:.0f}" if values else "-"

        return [
            at(self.waits, 0.5),
            at(self.waits, 0.95),
            f"{len(self.late)}/{self.chunks}",
            at(self.late, 0.5),
            at(self.late, 1.0),
            f"{self.rows:.1f}",
            f"{100 * (1 - len(self.broken) / max(1, len(self.waits))):.1f}",
        ]


class Simulation:
    """Talker and codec as two machines that work at the same time, in simulated seconds."""

    def __init__(self, load: Load, order: Order, seed: int = 0) -> None:
        self.load, self.order = load, order
        self.now = 0.0
        self.chance = random.Random(seed)
        talker_sizes = tuple(2**i for i in range(10) if 2**i <= load.talker_batch)
        codec_sizes = tuple(2**i for i in range(10) if 2**i <= load.codec_batch)
        config = EngineConfig(
            max_slots=load.streams, queue=load.streams, max_length=8,
            talker_batch_buckets=talker_sizes, codec_batch_buckets=codec_sizes, codec_slots=4 * load.streams,
        )  # fmt: skip
        self.schedule = ChunkSchedule.from_mapping(
            {"codec_chunk_ramp": load.chunks, "codec_chunk_frames": 15}
        )
        self.talker = TalkerEngine(IdleTalker(), config, capture=EagerCapture(), clock=lambda: self.now)
        self.codec = CodecEngine(
            IdleCodec(),
            config,
            self.schedule.frame_sizes("state"),
            capture=EagerCapture(),
            slack=load.slack,
        )
        self.talker.warm_up(lambda done, total: None)
        self.codec.warm_up(lambda done, total: None)
        self.figures = Figures()
        self.listeners: dict[SpeechStream, Listener] = {}
        self.by_key: dict[int, Listener] = {}
        self.arrivals = deque(sorted(self.chance.uniform(0, 2.0) for _ in range(load.streams)))
        self.asked = self.finished = 0

    def run(self) -> Figures:
        talker_free = codec_free = 0.0
        in_talker: Any = None
        in_codec: Any = None
        while self.finished < self.load.finished:
            self._arrive()
            if in_talker is None:
                self._prepare()
                step = self.talker.step()
                if not step.idle:
                    in_talker, talker_free = step, self.now + self.load.step
            if in_codec is None:
                batch = self.codec.form_batch()
                if batch:
                    in_codec, codec_free = self.codec.decode(batch), self.now + self.load.decode
            events = [t for t, busy in ((talker_free, in_talker), (codec_free, in_codec)) if busy is not None]
            events += [self.arrivals[0]] if self.arrivals else []
            self.now = max(self.now, min(events))
            if in_talker is not None and talker_free <= self.now:
                self._spoken(in_talker)
                in_talker = None
            if in_codec is not None and codec_free <= self.now:
                self._heard(in_codec)
                in_codec = None
        self.figures.rows = self.codec.counters.rows / self.codec.counters.batches
        return self.figures

    def _arrive(self) -> None:
        while self.arrivals and self.arrivals[0] <= self.now:
            self.arrivals.popleft()
            request = SpeechRequest(str(self.chance.randint(20, 120)), max_frames=10**6)
            prompt = self.talker.talker.build_prompt(request, request.text, True)
            stream = SpeechStream(request, deque([prompt]), more_prompts=False)
            policy = self.schedule.policy(clock=lambda: self.now, frame_seconds=FRAME_SECONDS)
            listener = Listener(self.asked, stream, StreamBuffer(policy), asked=self.now)
            self.asked += 1
            self.listeners[stream] = self.by_key[listener.number] = listener
            self.talker.admit(stream)

    def _deadline(self, listener: Listener, frames: int) -> float:
        """When frame number `frames` is wanted."""
        if listener.started is None:
            return -1.0 if self.order == "first chunks first" else self.now
        if self.order == "deadline":
            return listener.started + frames * FRAME_SECONDS
        return self.now

    def _prepare(self) -> None:
        for stream, listener in self.listeners.items():
            stream.paused = listener.sent - listener.decoded >= self.load.credit
            stream.deadline = self._deadline(listener, stream.frames) if self.order == "deadline" else 0.0

    def _spoken(self, step: Any) -> None:
        touched = {}
        for stream, frame in zip(step.streams, step.frames, strict=True):
            listener = touched[stream] = self.listeners[stream]
            listener.buffer.put(frame)
        for stream, _, error in step.ended:
            if error is not None:
                raise error
            listener = touched[stream] = self.listeners.pop(stream)
            listener.buffer.signal_done()
        for listener in touched.values():
            while listener.buffer.has_chunk_ready():
                chunk = listener.buffer.pop_chunk()
                frames = np.array(chunk.items, np.int32).reshape(-1, 1)
                self.codec.submit(
                    CodecJob(
                        listener.number, listener.sent, frames, 0, listener.frames_sent, chunk.is_final,
                        self._deadline(listener, listener.frames_sent),
                    )
                )  # fmt: skip
                listener.sent += 1
                listener.frames_sent += len(frames)

    def _heard(self, results: Any) -> None:
        for result in results:
            listener = self.by_key[result.job.key]
            listener.decoded += 1
            if listener.started is None:
                listener.started = self.now
                self.figures.waits.append(self.now - listener.asked)
            else:
                self.figures.chunks += 1
                late = self.now - (listener.started + listener.frames_heard * FRAME_SECONDS)
                if late > 1e-3 and len(result.job.frames):
                    self.figures.late.append(late)
                    if late > 0.1:
                        self.figures.broken.add(listener.number)
            listener.frames_heard += len(result.job.frames)
            if result.job.final:
                del self.by_key[result.job.key]
                self.finished += 1
                self.arrivals.append(self.now + self.chance.uniform(0.0, 0.5))
                self.arrivals = deque(sorted(self.arrivals))


LOADS = {
    "codec busy": Load(step=0.020, decode=0.025),
    "codec overloaded": Load(step=0.020, decode=0.031),
    "talker batch smaller than the streams": Load(step=0.017, decode=0.012, talker_batch=32),
}


def compare(console: Console) -> dict[str, Any]:
    """Print every order under every load; returns the figures."""
    report: dict[str, Any] = {}
    console.print(
        f"simulated time, real engines; {FRAME_SECONDS * 1e3:.0f} ms of audio a frame, closed loop, "
        "texts of 20 to 120 frames; times in ms"
    )
    for name, load in LOADS.items():
        console.print(
            f"{name}: {load.streams} streams, step {load.step * 1e3:.0f} ms for {load.talker_batch} rows, "
            f"decode {load.decode * 1e3:.0f} ms for {load.codec_batch} rows, chunks {load.chunks}",
            style="bold",
        )
        table = Table(box=None, pad_edge=False)
        for heading in (
            "order",
            "first p50",
            "p95",
            "late chunks",
            "late p50",
            "max",
            "rows",
            "continuous %",
        ):
            table.add_column(heading, justify="left" if heading == "order" else "right")
        for order in ORDERS:
            figures = Simulation(load, order).run()
            table.add_row(order, *figures.row())
            report.setdefault(name, {})[order] = {
                "first_p50": float(np.quantile(figures.waits, 0.5)),
                "first_p95": float(np.quantile(figures.waits, 0.95)),
                "late": len(figures.late),
                "chunks": figures.chunks,
                "late_max": max(figures.late, default=0.0),
                "streams": len(figures.waits),
                "broken": len(figures.broken),
            }
        console.print(table)
    return report

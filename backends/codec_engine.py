"""Batches the codec work of all streams: one call a stream a round, by playback deadline, in prepared shapes.

Any schedule gives the audio of one decode of the whole stream. What a codec has to hear before a chunk (a
prefix to prime it, frames of context) is added here; calls that a chunk needs beyond the first take part in
later batches, so that a stream with much to catch up on does not hold the others up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from backends.codec import Codec
from backends.codec_windows import PLANNERS, CodecCall, Planner, call_sizes
from backends.graphs import (
    BufferSpec,
    CaptureBackend,
    Function,
    GraphCounters,
    GraphRunner,
    Tensors,
    batch_buckets,
)
from backends.voice import EngineConfig

# Seconds that the most urgent chunk may wait for a fuller batch, about a call of a busy machine. Under an
# overload it makes fewer streams late (python -m bench.engines --fifo).
BATCH_SLACK = 0.04


@dataclass(eq=False)
class CodecJob:
    """One chunk of one stream.

    key: identity of the stream. index: of the chunk. frames: [n, width] int32 codes or float32 latents: the
        context, then the new frames. context: leading frames that are not new: delivered already or, in a
        first chunk, a prefix that primes the codec and whose audio is dropped. start_offset: index in the
        stream of the first new frame.
    final: ends the stream (n may equal context). deadline: when the chunk's first sample is wanted,
        monotonic seconds.
    """

    key: Hashable
    index: int
    frames: np.ndarray
    context: int
    start_offset: int
    final: bool
    deadline: float


@dataclass
class CodecResult:
    """A chunk's audio: samples float32 [channels, n], the first of them at `first_sample` of the stream.

    error: why there is none; the stream gives only errors until it is closed.
    """

    job: CodecJob
    samples: np.ndarray
    first_sample: int
    error: Exception | None = None


@dataclass
class CodecCounters(GraphCounters):
    """batches, rows: codec calls and rows of streams in them. padding_rows: rows of the null slot.
    padding_frames: frames added to rows to reach a prepared size."""

    batches: int = 0
    rows: int = 0
    padding_rows: int = 0
    padding_frames: int = 0


@dataclass(eq=False)
class _Stream:
    """jobs: chunks not begun. job: the chunk being decoded; its calls so far gave `parts`."""

    planner: Planner | None = None
    jobs: deque[CodecJob] = field(default_factory=deque)
    job: CodecJob | None = None
    call: CodecCall | None = None
    parts: list[np.ndarray] = field(default_factory=list)
    first_sample: int = 0
    slot: int | None = None
    in_batch: bool = False
    error: Exception | None = None


class CodecEngine:
    """Decodes chunks of many streams. Used from one thread; `warm_up` comes before the first job.

    The codec's state is allocated here. frame_sizes: sizes of the chunks that the voice's schedule can send
    (`ChunkSchedule.frame_sizes("state")`); context and look-ahead are added here as the codec needs them.
    slack: seconds by which a fuller batch may be less urgent than the most urgent chunk and still go first.
    """

    def __init__(
        self,
        codec: Codec,
        config: EngineConfig,
        frame_sizes: Sequence[int],
        *,
        capture: CaptureBackend,
        slack: float = BATCH_SLACK,
    ) -> None:
        self.codec = codec
        self._slack = slack
        self._spec = codec.spec
        self._slots = slots_of(codec, config)
        self._buckets = batch_buckets(config.codec_batch_buckets, self._slots)
        self._sizes = call_sizes(codec, frame_sizes)
        # Unsigned: a negative code is a huge one, so one comparison finds both.
        self._limits = np.array(codec.spec.sizes, np.uint64)
        self._streams: dict[Hashable, _Stream] = {}
        self._free = deque(range(self._slots))
        self._jobs = 0  # submitted and neither decoded nor dropped
        self.counters = CodecCounters()
        codec.allocate(self._slots)
        self.runner: GraphRunner[tuple[int, int]] = GraphRunner(
            name="codec",
            bind=self._bind,
            specs=self._specs,
            fill_idle=self._fill_idle,
            keys=[(b, t) for b in self._buckets for t in self._sizes],
            size=lambda key: key[0] * key[1],
            capture=capture,
            counters=self.counters,
        )

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[int, int], None]) -> None:
        """Capture the decoder for every (batch, frames) size; `progress(done, total)` after each."""
        self.runner.warm_up(progress)

    @property
    def pending(self) -> int:
        """Chunks that could be decoded now; those of streams that wait for a slot do not count."""
        if self._free:
            return self._jobs
        return self._jobs - sum(len(s.jobs) for s in self._streams.values() if s.slot is None)

    # Jobs in.

    def submit(self, job: CodecJob) -> None:
        """Queue a chunk behind the stream's earlier ones. What is wrong with it is told by its result."""
        stream = self._streams.setdefault(job.key, _Stream())
        stream.jobs.append(job)
        self._jobs += 1

    def close(self, key: Hashable) -> None:
        """Forget a stream: its chunks and its slot. Unknown ones are ignored."""
        stream = self._streams.pop(key, None)
        if stream is None:
            return
        self._jobs -= len(stream.jobs) + (stream.job is not None)
        self._release(stream)

    def _release(self, stream: _Stream) -> None:
        if stream.slot is not None:
            self.codec.close(torch.tensor([stream.slot], device=self.codec.device))
            self._free.append(stream.slot)
            stream.slot = None

    # Forming a batch.

    def form_batch(self) -> list[CodecJob]:
        """Take the next batch off the queue: chunks whose calls have the same size, the most urgent ones of
        it.

        The size is that of the most urgent chunk, or of a fuller batch nearly as urgent. At most one chunk
        a stream; [] if there is nothing to do. A chunk that needs several calls comes back in later batches
        until its last call gives the result.
        """
        groups: dict[int, list[_Stream]] = {}
        unopened = 0
        for stream in sorted(self._candidates(), key=_deadline):
            new = stream.slot is None and stream.error is None
            if new and unopened == len(self._free):
                continue
            if stream.job is None:
                self._begin(stream, stream.jobs.popleft())
            unopened += new
            group = groups.setdefault(stream.call.size if stream.call else 0, [])
            if len(group) < self._buckets[-1]:
                group.append(stream)
        if not groups:
            return []
        # Groups come by their most urgent row; of those that are about as urgent as the first, the fullest.
        latest = _deadline(next(iter(groups.values()))[0]) + self._slack
        batch = max((g for g in groups.values() if _deadline(g[0]) <= latest), key=len)
        for stream in batch:
            stream.in_batch = True
        return [s.job for s in batch if s.job is not None]

    def _candidates(self) -> list[_Stream]:
        """Streams that have something to decode and are in no batch."""
        return [s for s in self._streams.values() if (s.jobs or s.job) and not s.in_batch]

    def _begin(self, stream: _Stream, job: CodecJob) -> None:
        """Make the job the stream's current one and plan its first call."""
        stream.job = job
        stream.parts = []
        stream.call = None
        if stream.error is None:
            try:
                self._check(stream.planner, job)
            except ValueError as error:
                stream.error = error
        if stream.error is not None:
            return
        if stream.planner is None:
            prefix = job.frames[: job.context]
            stream.planner = PLANNERS[self.codec.mode](self.codec, self._sizes, prefix)
        stream.planner.receive(job.frames[job.context :], job.final)
        stream.first_sample = stream.planner.emitted
        stream.call = stream.planner.next_call()

    def _check(self, planner: Planner | None, job: CodecJob) -> None:
        have = planner.have if planner else 0
        if job.start_offset != have:
            raise ValueError(f"a chunk starts at frame {job.start_offset} where {have} is next")
        if job.frames.ndim != 2 or job.frames.shape[1] != self._spec.width:
            raise ValueError(f"frames have shape {job.frames.shape}; they must be [n, {self._spec.width}]")
        if not 0 <= job.context <= len(job.frames):
            raise ValueError(f"context is {job.context} of {len(job.frames)} frames")
        codes = self._spec.kind == "codes"
        bad = job.frames.astype(np.uint64) >= self._limits if codes else ~np.isfinite(job.frames)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            where = f"frame {job.start_offset - job.context + row}, column {column}"
            limit = f"codes are below {self._limits[column]}" if codes else "it must be finite"
            raise ValueError(f"{where} holds {job.frames[row, column]}; {limit}")

    # Decoding.

    @torch.inference_mode()
    def decode(self, batch: list[CodecJob]) -> list[CodecResult]:
        """Make one call for the jobs of `form_batch` that are still wanted (streams closed since are
        skipped).

        Returns the results of those that are complete. A row that fails gives an error, the others go on.
        """
        streams = [s for job in batch if (s := self._streams.get(job.key)) is not None]
        calling = [s for s in streams if s.call is not None]
        for stream in streams:
            stream.in_batch = False
        if calling:
            self._open([s for s in calling if s.slot is None])
            self._call(calling)
        return [result for s in streams if (result := self._result(s)) is not None]

    def _open(self, streams: list[_Stream]) -> None:
        if streams:
            for stream in streams:
                stream.slot = self._free.popleft()
            slots = torch.tensor([s.slot for s in streams], device=self.codec.device)
            self.codec.open(slots)

    def _call(self, streams: list[_Stream]) -> None:
        """One codec call; row by row if it fails."""
        try:
            pcm, spans = self._run([(s.slot, s.call) for s in streams if s.call])
        except Exception as error:
            if len(streams) == 1:
                streams[0].error = error
                return
            for stream in streams:
                self._call([stream])
            return
        # One sum a row tells cheaply that all its samples are finite.
        clean = np.isfinite(pcm.sum(axis=(1, 2))).tolist()
        for stream, samples, (first, count), fine in zip(streams, pcm, spans.tolist(), clean, strict=False):
            try:
                self._take(stream, samples, first, count, fine)
            except FloatingPointError as error:
                stream.error = error

    def _run(self, rows: Sequence[tuple[int | None, CodecCall]]) -> list[np.ndarray]:
        """The model call: pcm [B, channels, N] and (first, count) [B, 2] of padded rows too."""
        n = len(rows)
        size = rows[0][1].size
        key = (next(b for b in self._buckets if b >= n), size)
        control, frames = self.runner.inputs(key).arrays
        control[0, n:] = self._slots
        control[1, n:] = size
        control[2, n:] = 0
        for i, (slot, call) in enumerate(rows):
            length = len(call.frames)
            control[:, i] = (slot, length, call.final)
            frames[i, :length] = call.frames
            frames[i, length:] = 0
            self.counters.padding_frames += size - length
        outputs = self.runner.run(key)
        self.counters.batches += 1
        self.counters.rows += n
        self.counters.padding_rows += key[0] - n
        return outputs

    def _take(self, stream: _Stream, pcm: np.ndarray, first: int, count: int, fine: bool) -> None:
        """Cut the samples that count out of a row's audio [channels, N]; fine: all of it is finite."""
        call, planner = stream.call, stream.planner
        assert call is not None and planner is not None
        begin = call.origin + first
        end = min(begin + count, call.stop)
        if end > planner.emitted:
            if begin > planner.emitted:
                raise FloatingPointError(f"the codec left out samples {planner.emitted} to {begin}")
            samples = pcm[:, planner.emitted - begin : int(end) - begin]
            if not fine and not np.isfinite(samples).all():
                raise FloatingPointError("the codec made samples that are not finite")
            stream.parts.append(samples)
            planner.emitted = int(end)
        planner.made(call)
        stream.call = planner.next_call()

    def _result(self, stream: _Stream) -> CodecResult | None:
        job = stream.job
        assert job is not None
        if stream.error is None and stream.call is not None:
            return None
        stream.job = None
        self._jobs -= 1
        if stream.error is not None:
            self._release(stream)
            return CodecResult(job, self._silence(), stream.first_sample, stream.error)
        if job.final:
            self._release(stream)
            self._streams.pop(job.key)
        parts = stream.parts
        samples = np.concatenate(parts, 1) if len(parts) > 1 else parts[0] if parts else self._silence()
        return CodecResult(job, samples, stream.first_sample)

    def _silence(self) -> np.ndarray:
        return np.zeros((self._spec.channels, 0), np.float32)

    # What is captured.

    def _specs(self, key: tuple[int, int]) -> list[BufferSpec]:
        rows, size = key
        return [((3, rows), torch.int64), ((rows, size, self._spec.width), self._spec.dtype)]

    def _fill_idle(self, arrays: list[np.ndarray]) -> None:
        control, frames = arrays
        control[0] = self._slots
        control[1] = frames.shape[1]
        control[2] = 0

    def _bind(self, key: tuple[int, int]) -> Function:
        def decode(control: torch.Tensor, frames: torch.Tensor) -> Tensors:
            slots, lengths, final = control.unbind(0)
            out = self.codec.decode(slots, frames, lengths, final.bool())
            return out.pcm, torch.stack([out.first, out.count], dim=1)

        return decode


def _deadline(stream: _Stream) -> float:
    return (stream.job or stream.jobs[0]).deadline


def default_slots(talker_slots: int) -> int:
    """Codec slots for a talker's: some more, for streams whose last chunks are still on the way."""
    return talker_slots + max(4, talker_slots // 4)


def slots_of(codec: Codec, config: EngineConfig) -> int:
    """How many streams may have decoder state. Raises ValueError if not even one fits `codec_memory_mb`."""
    slots = config.codec_slots or default_slots(config.max_slots)
    if not config.codec_memory_mb:
        return slots
    codec.allocate(1)
    fitting = config.codec_memory_mb * 2**20 // max(1, codec.slot_bytes())
    if fitting < 1:
        raise ValueError(
            f"engine.codec_memory_mb is {config.codec_memory_mb}; one stream's decoder state takes "
            f"{codec.slot_bytes() / 2**20:.1f} MiB: raise it"
        )
    return min(slots, fitting)

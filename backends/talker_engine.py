"""Continuous batching of a talker: many streams, one slot each, one step for all that are ready.

A call of `TalkerEngine.step` does at most one prefill run, whose cost is bounded, and one step of the ready
slots. Streams join and leave between steps. A stream's random numbers depend on its seed and its own step
count, so it makes the same codes alone and among others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from backends.graphs import (
    BufferSpec,
    CaptureBackend,
    Function,
    GraphCounters,
    GraphRunner,
    Tensors,
    batch_buckets,
)
from backends.noise import counter_noise, seed_key
from backends.prefill import PrefillBudget, run_bucket
from backends.speech_stream import EngineStep, Piece, ServerFull, SpeechStream, StepResults
from backends.talker import Prompt, SamplingTable, StepFlag, Talker
from backends.voice import EngineConfig

__all__ = ["EngineStep", "ServerFull", "SpeechStream", "TalkerCounters", "TalkerEngine"]

# Steps a piece may take beyond those of its frames: silent ones (a start step, dropped rows).
_SPARE_STEPS = 64
_SMALLEST_LENGTH_BUCKET = 128
# Plain integers: operators of enumerations cost a microsecond each.
_VALID, _ENDED, _FAILED = int(StepFlag.VALID), int(StepFlag.ENDED), int(StepFlag.FAILED)
# Positions of a joint prefill where prompts cannot be cut and nobody is stepping.
_UNCUT_PREFILL = 256


@dataclass
class TalkerCounters(GraphCounters):
    """Work done. rows: ready rows stepped; padding_rows: rows of the null slot that filled batches up."""

    steps: int = 0
    rows: int = 0
    padding_rows: int = 0
    prefill_runs: int = 0
    prefill_positions: int = 0
    retried_steps: int = 0


class TalkerEngine:
    """Runs a talker for up to `config.max_slots` streams at once. Used from one thread.

    The talker's state is allocated here; `warm_up` must be called before the first step.
    """

    def __init__(
        self,
        talker: Talker,
        config: EngineConfig,
        *,
        capture: CaptureBackend,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.talker = talker
        self._spec = talker.spec
        self._clock = clock
        self._slots = config.max_slots
        self._queue_limit = config.queue
        self._batch_buckets = batch_buckets(config.talker_batch_buckets, config.max_slots)
        self._length_buckets = length_buckets(config)
        self._length_limit = self._length_buckets[-1]
        self._per_frame_text = talker.text_mode == "per_frame"
        self._assembled = not talker.spec.whole_frames
        self._dtype = np.int32 if talker.spec.kind == "codes" else np.float32
        # Unsigned: a negative code is a huge one, so one comparison finds both.
        self._sizes = np.array(talker.spec.sizes, np.uint64)
        self._budget = PrefillBudget(talker.prefill_chunk or _UNCUT_PREFILL)
        self.counters = TalkerCounters()

        talker.allocate(config.max_slots, config.max_length)
        rows = config.max_slots + 1
        device = talker.device
        self._table = SamplingTable(
            temperature=torch.ones(rows, device=device),
            top_k=torch.zeros(rows, dtype=torch.int64, device=device),
            top_p=torch.ones(rows, device=device),
            repetition_penalty=torch.ones(rows, device=device),
            extra={
                name: torch.full((rows,), p.default, device=device) for name, p in talker.parameters.items()
            },
        )
        self._noise_keys = np.zeros(rows, np.uint64)
        self._noise_frames = np.zeros(rows, np.int64)

        self._free = deque(range(config.max_slots))
        self._active: list[SpeechStream] = []
        self._queued: deque[SpeechStream] = deque()
        self.runner: GraphRunner[tuple[int, int]] = GraphRunner(
            name="talker",
            bind=self._bind,
            specs=self._specs,
            fill_idle=self._fill_idle,
            keys=[(b, n) for b in self._batch_buckets for n in self._length_buckets],
            size=lambda key: key[0] * key[1],
            capture=capture,
            counters=self.counters,
        )

    # Warm-up and figures.

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[int, int], None]) -> None:
        """Capture the step for every (batch, length) bucket; `progress(done, total)` after each."""
        self.runner.warm_up(progress)

    @property
    def active(self) -> int:
        """Streams that hold a slot."""
        return len(self._active)

    @property
    def queued(self) -> int:
        """Streams that wait for a slot."""
        return len(self._queued)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def load(self) -> float:
        """Share of the slots in use, 0 to 1."""
        return len(self._active) / self._slots

    # Streams in and out.

    def admit(self, stream: SpeechStream) -> None:
        """Give the stream a slot or a place in the queue. Raises ServerFull if neither is free."""
        if self._free and not self._queued:
            self._open(stream)
        elif len(self._queued) < self._queue_limit:
            self._queued.append(stream)
        else:
            raise ServerFull(
                f"all {self._slots} slots and {self._queue_limit} places in the queue are taken; "
                "try again later or raise engine.max_slots or engine.queue"
            )

    def cancel(self, stream: SpeechStream) -> None:
        """Forget the stream; its slot is free at once. A stream that has ended stays as it is."""
        if stream.finish_reason is not None:
            return
        if stream.slot is None:
            self._queued.remove(stream)
            stream.finish_reason = "cancelled"
        else:
            self._close(stream, "cancelled")

    def _open(self, stream: SpeechStream) -> None:
        slot = stream.slot = self._free.popleft()
        sampling, table = stream.request.sampling, self._table
        table.temperature[slot] = sampling.temperature
        table.top_k[slot] = sampling.top_k
        table.top_p[slot] = sampling.top_p
        table.repetition_penalty[slot] = sampling.repetition_penalty
        for name, parameter in self.talker.parameters.items():
            table.extra[name][slot] = sampling.extra.get(name, parameter.default)
        self._noise_keys[slot] = seed_key(stream.request.seed)
        self._noise_frames[slot] = 0
        self._active.append(stream)

    def _close(self, stream: SpeechStream, reason: str) -> None:
        assert stream.slot is not None
        self._free.append(stream.slot)
        self._active.remove(stream)
        stream.slot = stream.piece = None
        stream.waiting_for_text = False
        stream.finish_reason = reason

    # One round.

    @torch.inference_mode()
    def step(self) -> EngineStep:
        """Do at most one prefill run and one step of the ready slots."""
        begin = self._clock()
        while self._queued and self._free:
            self._open(self._queued.popleft())
        out = StepResults([], [], [])
        unfilled: list[SpeechStream] = []
        ready: list[SpeechStream] = []
        for stream in tuple(self._active):
            state = self._state(stream, out)
            if state == "prefill":
                unfilled.append(stream)
            elif state == "ready":
                ready.append(stream)
        positions = self._prefill(unfilled, ready, out) if unfilled else 0
        rows = 0
        if ready:
            rows = self._step_rows(self._choose(ready), out)
        seconds = self._clock() - begin
        if rows and positions:
            self._budget.observe_both(positions, rows, seconds)
        elif rows:
            self._budget.observe_step(rows, seconds)
        idle = not (positions or ready or out.ended)
        return EngineStep(out.streams, out.stack(self._spec.width, self._dtype), out.ended, idle)

    def _state(self, stream: SpeechStream, out: StepResults) -> Literal["wait", "prefill", "ready"]:
        """What the stream can do now; starts its next prompt or ends it where that is due."""
        if stream.piece is None and not self._next_piece(stream, out):
            return "wait"
        if stream.paused:
            return "wait"
        piece = stream.speaking
        if piece.prefilled < piece.length:
            return "prefill"
        if self._per_frame_text:
            stream.waiting_for_text = not (stream.text_ids or stream.text_ended)
        return "wait" if stream.waiting_for_text else "ready"

    def _next_piece(self, stream: SpeechStream, out: StepResults) -> bool:
        """Start the next prompt. False if there is none (yet) or it cannot be spoken."""
        stream.waiting_for_text = not stream.prompts and stream.more_prompts
        if not stream.prompts:
            if not stream.more_prompts:
                self._finish(stream, out)
            return False
        try:
            stream.piece = self._begin(stream, stream.prompts.popleft())
        except Exception as error:
            self._fail(stream, error, out)
        return stream.piece is not None

    def _begin(self, stream: SpeechStream, prompt: Prompt) -> Piece:
        """Start a prompt. Raises ValueError if the cache cannot hold it."""
        length = prompt.inputs.shape[0]
        positions = self.talker.positions(prompt, 1)
        if positions > self._length_limit:
            raise ValueError(
                f"a piece of text takes {positions} positions before its first frame; the limit is "
                f"{self._length_limit} (engine.max_length): shorten the text or the reference, or raise it"
            )
        if length == 0:
            raise ValueError("a piece of text made an empty prompt; give text that can be spoken")
        stream.text_ids.extendleft(reversed(prompt.text_ids))
        spec = self._spec
        steps = prompt.max_frames * spec.steps_per_frame + max(spec.delay, default=0) + _SPARE_STEPS
        return Piece(prompt, length, self.talker.assembler(), steps, positions=positions)

    def _finish(self, stream: SpeechStream, out: StepResults) -> None:
        reason = "length" if stream.cut else "stop"
        self._close(stream, reason)
        out.ended.append((stream, reason, None))

    def _fail(self, stream: SpeechStream, error: Exception, out: StepResults) -> None:
        self._close(stream, "error")
        out.ended.append((stream, "error", error))

    # Prefill.

    def _prefill(self, unfilled: list[SpeechStream], ready: list[SpeechStream], out: StepResults) -> int:
        """One run for the most urgent prompts; streams whose prompt is complete are added to `ready`.

        Returns the positions that the run took, padding included.
        """
        largest = self.talker.prefill_chunk
        limit = self._budget.positions(self._bucket(len(ready)) if ready else 0)
        unfilled.sort(key=lambda s: s.deadline)
        head = unfilled[0].speaking
        left = head.length - head.prefilled
        bucket = run_bucket(left, None if largest is None else min(limit, largest))
        chosen = [unfilled[0]]
        for stream in unfilled[1 : self._batch_buckets[-1]]:
            piece = stream.speaking
            if (len(chosen) + 1) * bucket > limit:
                break
            if largest is not None or piece.length <= bucket:
                chosen.append(stream)
        for stream in self._prefill_rows(chosen, bucket, out):
            piece = stream.speaking
            if piece.prefilled == piece.length and self._state(stream, out) == "ready":
                ready.append(stream)
        return len(chosen) * bucket

    def _prefill_rows(
        self, streams: list[SpeechStream], bucket: int, out: StepResults
    ) -> Sequence[SpeechStream]:
        """Prefill one run of each stream; returns those that did not fail."""
        try:
            self._prefill_call(streams, bucket)
            return streams
        except Exception as error:
            if len(streams) == 1:
                self._fail(streams[0], error, out)
                return []
        return [s for stream in streams for s in self._prefill_rows([stream], bucket, out)]

    def _prefill_call(self, streams: list[SpeechStream], bucket: int) -> None:
        pieces = [s.speaking for s in streams]
        first = pieces[0].prompt.inputs
        inputs = torch.zeros((len(streams), bucket, *first.shape[1:]), dtype=first.dtype)
        runs = []
        for row, piece in zip(inputs, pieces, strict=True):
            run = min(bucket, piece.length - piece.prefilled)
            row[:run] = piece.prompt.inputs[piece.prefilled : piece.prefilled + run]
            runs.append(run)
        numbers = torch.tensor([[s.slot for s in streams], runs, [p.prefilled for p in pieces]])
        slots, lengths, begins = numbers.to(self.talker.device)
        self.talker.prefill(slots, inputs.to(self.talker.device), lengths, begins)
        self.counters.prefill_runs += 1
        self.counters.prefill_positions += sum(runs)
        for piece, run in zip(pieces, runs, strict=True):
            piece.prefilled += run

    # Step.

    def _bucket(self, rows: int) -> int:
        return next((b for b in self._batch_buckets if b >= rows), self._batch_buckets[-1])

    def _choose(self, ready: list[SpeechStream]) -> list[SpeechStream]:
        largest = self._batch_buckets[-1]
        if len(ready) > largest:
            # Equal deadlines (none known yet) take turns.
            ready.sort(key=lambda s: (s.deadline, s.last_step))
            ready = ready[:largest]
        return ready

    def _step_rows(self, streams: list[SpeechStream], out: StepResults) -> int:
        """Step these streams, one by one if they fail together; returns the batch bucket."""
        text = [0] * len(streams)
        if self._per_frame_text:
            text = [s.text_ids.popleft() if s.text_ids else -1 for s in streams]
        try:
            packed = self._call(streams, text)
        except Exception as error:
            if len(streams) == 1:
                self._fail(streams[0], error, out)
                return self._bucket(1)
            self.counters.retried_steps += 1
            for stream, one in zip(streams, text, strict=True):
                try:
                    packed = self._call([stream], [one])
                except Exception as culprit:
                    self._fail(stream, culprit, out)
                else:
                    self._take([stream], packed, out)
            return self._bucket(len(streams))
        self._take(streams, packed, out)
        return self._bucket(len(streams))

    def _call(self, streams: list[SpeechStream], text: list[int]) -> np.ndarray:
        """One model call; returns raw rows with the flags as last column, [n, R + 1]."""
        n = len(streams)
        longest = max(s.speaking.positions for s in streams)
        length = next(b for b in self._length_buckets if b >= longest)
        key = (self._bucket(n), length)
        control, noise = self.runner.inputs(key).arrays
        slots = control[0]
        slots[:n] = [s.slot for s in streams]
        slots[n:] = self._slots
        control[1, :n] = text
        used = slots[:n]
        spec = self.talker.noise
        if spec.count:
            noise[:n] = counter_noise(self._noise_keys[used], self._noise_frames[used], spec.count, spec.kind)
        packed = self.runner.run(key)[0][:n]
        self._noise_frames[used] += 1
        self.counters.steps += 1
        self.counters.rows += n
        self.counters.padding_rows += key[0] - n
        return packed

    def _take(self, streams: list[SpeechStream], packed: np.ndarray, out: StepResults) -> None:
        """Account for a step's rows: frames out, pieces and streams ended."""
        raw = packed[:, :-1]
        flags = packed[:, -1].astype(np.int64)
        bad = (flags & _FAILED) != 0
        if self._spec.kind == "latent":
            bad |= ~np.isfinite(raw).all(1)
        elif not self._assembled:
            bad |= (raw.view(np.uint64) >= self._sizes).any(1) & ((flags & _VALID) != 0)
        whole: list[int] = []
        step = self.counters.steps
        for i, (stream, flag, is_bad) in enumerate(zip(streams, flags.tolist(), bad.tolist(), strict=True)):
            piece = stream.speaking
            stream.last_step = step
            if is_bad:
                self._fail(stream, _bad_row(self._spec.kind, raw[i]), out)
                continue
            piece.steps += 1
            made = 0
            if flag & _VALID:
                if piece.assembler is None:
                    whole.append(i)
                    made = 1
                else:
                    try:
                        made = self._assemble(stream, piece.assembler.push(torch.from_numpy(raw[i])), out)
                    except Exception as error:
                        self._fail(stream, error, out)
                        continue
            stream.frames += made
            piece.frames += made
            self._advance(stream, piece, bool(flag & _ENDED), out)
        if whole:
            out.streams.extend(streams[i] for i in whole)
            rows = raw if len(whole) == len(streams) else raw[whole]
            out.frames.append(rows.astype(self._dtype))

    def _assemble(self, stream: SpeechStream, frames: torch.Tensor, out: StepResults) -> int:
        """Put an assembler's frames out, no more than the stream may still make; returns their number."""
        array = frames.numpy()[: stream.request.max_frames - stream.frames]
        if len(array):
            if self._spec.kind == "codes" and (array.view(np.uint64) >= self._sizes).any():
                raise _bad_row("codes", array)
            out.streams.extend([stream] * len(array))
            out.frames.append(array.astype(self._dtype))
        return len(array)

    def _advance(self, stream: SpeechStream, piece: Piece, spoken: bool, out: StepResults) -> None:
        """After a step: end the piece if it is spoken or over a budget, and the stream if it was the last."""
        piece.positions = self.talker.positions(piece.prompt, piece.steps + 1)
        over_all = stream.frames >= stream.request.max_frames
        over_piece = (
            piece.frames >= piece.prompt.max_frames
            or piece.steps >= piece.step_limit
            or piece.positions > self._length_limit
        )
        if not (spoken or over_all or over_piece):
            return
        if piece.assembler is not None:
            try:
                stream.frames += self._assemble(stream, piece.assembler.flush(), out)
            except Exception as error:
                self._fail(stream, error, out)
                return
        stream.cut |= not spoken
        stream.piece = None
        last = not (stream.prompts or stream.more_prompts)
        if last:
            self._finish(stream, out)
        elif over_all:
            stream.cut = True
            self._finish(stream, out)

    # What is captured.

    def _specs(self, key: tuple[int, int]) -> list[BufferSpec]:
        rows, _ = key
        return [((2, rows), torch.int64), ((rows, self.talker.noise.count), torch.float32)]

    def _fill_idle(self, arrays: list[np.ndarray]) -> None:
        control, noise = arrays
        control[0] = self._slots
        control[1] = -1 if self._per_frame_text else 0
        noise[:] = 0.5

    def _bind(self, key: tuple[int, int]) -> Function:
        _, length = key

        def step(control: torch.Tensor, noise: torch.Tensor) -> Tensors:
            slots, text = control.unbind(0)
            result = self.talker.step(slots, text, noise, self._table, length)
            # One tensor, so that one copy brings both to the host.
            return (torch.cat([result.raw, result.flags[:, None].to(result.raw.dtype)], dim=1),)

        return step


def length_buckets(config: EngineConfig) -> tuple[int, ...]:
    """Cache lengths that steps are captured for; the last is the longest a piece of text may get.

    Raises ValueError if one is beyond `max_length`.
    """
    if config.length_buckets:
        if config.length_buckets[-1] > config.max_length:
            raise ValueError(
                f"engine.length_buckets ends at {config.length_buckets[-1]}; the cache has engine.max_length"
                f" = {config.max_length} positions: raise it or drop the bucket"
            )
        return config.length_buckets
    buckets = []
    size = _SMALLEST_LENGTH_BUCKET
    while size < config.max_length:
        buckets.append(size)
        size *= 2
    return (*buckets, config.max_length)


def _bad_row(kind: str, row: np.ndarray) -> FloatingPointError:
    values = (
        "numbers that are not finite"
        if kind == "latent"
        else f"codes outside their codebooks: {row.tolist()}"
    )
    return FloatingPointError(f"the talker made {values}; the stream cannot go on")

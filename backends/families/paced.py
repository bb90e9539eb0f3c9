"""paced: a talker and a codec without a model. They spend the time that a given machine would, and no CPU.

Everything around them is the product: admission, continuous batching, orchestrator, ensemble, batch former,
graphs' bookkeeping. So serving behaviour can be measured on a machine that has no accelerator. Model time is
simulated, and every report made with such a voice says so.

The audio is a signal that proves itself. Samples come in groups of four, each a 23-bit number as a float32
in [-0.5, 0.5): the group's position in the stream, the stream's tag (its seed), and two clock stamps that the
talker put into the frame. A lost, repeated, reordered or foreign sample is found by looking at it.

Text becomes one frame a character, which is about the rate of speech at 12.5 frames a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import numpy as np
import torch

from backends.codec import Codec, DecodeOutput
from backends.frames import FrameSpec
from backends.talker import NoiseSpec, Prompt, SamplingTable, SpeechRequest, StepFlag, StepOutput, Talker
from backends.text.segments import split_text
from backends.voice import VoiceConfig, VoiceError
from chunk_policies.machine import PRESETS, Machine

SAMPLES_PER_FRAME = 1920
GROUP = 4  # samples: position, tag, made, started
BITS = 23
STAMP_SECONDS = 1e-5
"""Unit of the clock stamps; they wrap after 84 s."""

MACHINES = {**PRESETS, "free": Machine(name="free", frame_seconds=0.08)}
"""Machines that a voice can name: the simulator's presets, and one on which everything is free."""

_MASK = (1 << BITS) - 1
_SCALE = np.float32(2.0**-BITS)
_HALF = np.float32(0.5)
# Sleeping longer than this is left to the system; the rest, its wake-up latency, is spun.
_SPIN_SECONDS = 1.5e-4
# A step with nothing to do but wait for prompts returns after this long, so that others can be admitted.
_IDLE_STEP_SECONDS = 2e-3


def stamp(seconds: float) -> int:
    """A time of the monotonic clock, which all processes of a machine share, as a 23-bit stamp."""
    return int(seconds / STAMP_SECONDS) & _MASK


def stamp_age(now: float, then: int) -> float:
    """Seconds from a stamp to `now` (monotonic seconds); right for less than 84 s."""
    return ((stamp(now) - then) & _MASK) * STAMP_SECONDS


def spend(seconds: float) -> None:
    """Wait exactly that long: sleep, then spin over the system's wake-up latency."""
    end = time.perf_counter() + seconds
    if seconds > _SPIN_SECONDS:
        time.sleep(seconds - _SPIN_SECONDS)
    while time.perf_counter() < end:
        pass


def frames_of(text: str, segment_chars: int) -> int:
    """How many frames a paced voice makes of a text: a character of each piece of text is a frame."""
    return sum(map(len, split_text(text, segment_chars)))


def sound(frames: np.ndarray) -> np.ndarray:
    """The audio of frames [..., 4] (tag, index, made, started): float32 [..., SAMPLES_PER_FRAME]."""
    groups = SAMPLES_PER_FRAME // GROUP
    out = np.empty((*frames.shape[:-1], groups, GROUP), np.float32)
    tag, index, made, started = (frames[..., k, None].astype(np.float32) * _SCALE for k in range(4))
    # All sums are multiples of 2**-23 below 1: exact.
    np.add(index * np.float32(groups), _RAMP, out=out[..., 0])
    for k, value in ((1, tag), (2, made), (3, started)):
        out[..., k] = value - _HALF
    return out.reshape(*frames.shape[:-1], SAMPLES_PER_FRAME)


_RAMP = np.arange(SAMPLES_PER_FRAME // GROUP, dtype=np.float32) * _SCALE - _HALF


def numbers(samples: np.ndarray) -> np.ndarray:
    """The numbers in audio: int64 [..., n] of float samples [..., n]."""
    return np.rint((samples.astype(np.float64) + 0.5) * (1 << BITS)).astype(np.int64)


class Pace:
    """A machine's clockwork: durations with its jitter, from a seed."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self._random = random.Random(seed)

    def prefill_seconds(self, tag: int) -> float:
        """From the arrival of a prompt to its first step; depends on the stream's seed, so that schedules are
        compared on the same requests."""
        spread = self.machine.prefill_spread
        return self.machine.prefill * random.Random(tag).lognormvariate(-(spread**2) / 2, spread)

    def step(self, batch: int) -> None:
        spend(self.machine.step_seconds(batch) * self._jitter())

    def decode(self, batch: int, frames: int, context: int = 0) -> None:
        spend(self.machine.codec_seconds(batch, frames, context) * self._jitter())

    def _jitter(self) -> float:
        return self._random.lognormvariate(0.0, self.machine.jitter) if self.machine.jitter else 1.0


def frame_spec(machine: Machine) -> FrameSpec:
    """Four numbers a frame: tag, index, and the stamps `made` and `started`."""
    return FrameSpec(
        kind="codes",
        width=4,
        sizes=(1 << BITS,) * 4,
        sample_rate=round(SAMPLES_PER_FRAME / machine.frame_seconds),
        channels=1,
        samples_per_frame=SAMPLES_PER_FRAME,
    )


class PacedTalker(Talker):
    """One frame a step. A step costs what the machine's step costs for the rows that make a frame in it.

    The prefill only delays its own stream, as in the simulator: in the systems that are imitated most of it
    is the reference audio's encoder or other work beside the steps. Further pieces of a text start without
    delay.
    """

    noise = NoiseSpec(0)

    def __init__(self, machine: Machine, seed: int) -> None:
        self.spec = frame_spec(machine)
        self.device = torch.device("cpu")
        self._pace = Pace(machine, seed)

    def allocate(self, max_slots: int, max_length: int) -> None:
        rows = max_slots + 1
        self._frame = np.zeros((rows, 4), np.int64)  # each slot's next frame: tag, index, made, started
        self._left = np.zeros(rows, np.int64)  # frames of the piece still to be made
        self._ready = np.full(
            rows, np.inf
        )  # monotonic seconds of the first step; the null slot's never comes

    def slot_bytes(self) -> int:
        return 6 * 8

    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        row = [request.seed & _MASK, len(text), int(first)]
        # The piece ends by itself; steps in which it waits for its prefill must not end it.
        return Prompt(torch.tensor([row]), max_frames=len(text) + 1_000_000)

    def positions(self, prompt: Prompt, frames: int) -> int:
        return 1

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        rows = slots.numpy()
        tag, frames, first = inputs.numpy()[:, 0].T
        now = time.monotonic()
        self._left[rows] = frames
        new = rows[first > 0]
        if len(new):
            self._frame[new] = 0
            self._frame[new, 0] = tag[first > 0]
            self._frame[new, 3] = stamp(now)
            self._ready[new] = [now + self._pace.prefill_seconds(one) for one in tag[first > 0].tolist()]

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        rows = slots.numpy()
        ready = self._ready[rows]
        live = ready <= time.monotonic()
        batch = int(np.count_nonzero(live))
        if batch:
            self._pace.step(batch)
        else:
            wait = float(ready.min()) - time.monotonic()
            if wait < np.inf:  # not in warm-up
                spend(min(max(wait, 0.0), _IDLE_STEP_SECONDS))
        raw = self._frame[rows]
        raw[:, 2] = stamp(time.monotonic())
        self._frame[rows, 1] += live
        self._left[rows] -= live
        flags = live * (StepFlag.VALID + StepFlag.ENDED * (self._left[rows] <= 0))
        return StepOutput(torch.from_numpy(raw), torch.from_numpy(flags.astype(np.int32)))


class PacedCodec(Codec):
    """A causal codec with state, whose only state is where each stream is. Audio comes from the codes alone,
    so that what was lost before the codec shows; the position it reports is its own count."""

    mode = "state"

    def __init__(self, machine: Machine, seed: int) -> None:
        self.spec = frame_spec(machine)
        self.device = torch.device("cpu")
        self._pace = Pace(machine, seed)

    def allocate(self, slots: int) -> None:
        self._null = slots
        self._position = np.zeros(slots + 1, np.int64)

    def slot_bytes(self) -> int:
        return 8

    def open(self, slots: torch.Tensor) -> None:
        self._position[slots.numpy()] = 0

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        rows = slots.numpy()
        batch = int((rows != self._null).sum())
        if batch:  # warm-up is free
            self._pace.decode(batch, frames.shape[1])
        pcm = sound(frames.numpy()).reshape(len(rows), 1, -1)
        counts = lengths.numpy() * SAMPLES_PER_FRAME
        first = self._position[rows].copy()
        self._position[rows] += counts
        return DecodeOutput(torch.from_numpy(pcm), torch.from_numpy(first), torch.from_numpy(counts))


def machine_of(voice: VoiceConfig) -> Machine:
    """The machine of a paced voice: `options.machine` names a preset, `options.costs` replaces some of its
    costs.

    Raises VoiceError naming the file, the key and what is allowed.
    """
    name = voice.options.get("machine")
    if name not in MACHINES:
        raise VoiceError(f"{voice.source}: options.machine is {name!r}; give one of {', '.join(MACHINES)}")
    costs = voice.options.get("costs") or {}
    if not isinstance(costs, Mapping):
        raise VoiceError(f"{voice.source}: options.costs is {costs!r}; give a mapping of costs in seconds")
    try:
        return MACHINES[name].changed(costs)
    except ValueError as error:
        raise VoiceError(f"{voice.source}: options.costs: {error}") from error


class PacedFamily:
    """Implements `backends.family.Family`."""

    def load_talker(self, voice: VoiceConfig, device: torch.device) -> Talker:
        return PacedTalker(self._machine(voice, device), self._seed(voice))

    def load_codec(self, voice: VoiceConfig, device: torch.device) -> Codec:
        return PacedCodec(self._machine(voice, device), self._seed(voice) + 1)

    @staticmethod
    def _machine(voice: VoiceConfig, device: torch.device) -> Machine:
        if device.type != "cpu":
            raise VoiceError(
                f"{voice.source}: paced voices need no {device}; start the server with --device cpu"
            )
        return machine_of(voice)

    @staticmethod
    def _seed(voice: VoiceConfig) -> int:
        seed = voice.options.get("seed", 0)
        if type(seed) is not int:
            raise VoiceError(f"{voice.source}: options.seed is {seed!r}; give an integer")
        return seed


FAMILY = PacedFamily()

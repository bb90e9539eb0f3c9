"""The interface between the talker engine and a model family's talker.

A talker is autoregressive: from text (and perhaps a reference voice) it makes one row of raw output a step.
All state of a request lives in tensors whose first dimension is the slot, `max_slots + 1` long: the last
one is the null slot, which padding rows of a batch use. So a step is pure tensor code over `slots`, can be
captured in a CUDA graph, and gives a stream the same result alone and among others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Literal

import numpy as np
import torch

from backends.frames import FrameAssembler, FrameSpec


class StepFlag(IntFlag):
    """Bits of `StepOutput.flags`."""

    VALID = 1  # the raw row counts (a frame, or a part of one)
    ENDED = 2  # the prompt is spoken; nothing follows it
    FAILED = 4  # numbers went bad (NaN): the engine ends the stream with an error


class NothingToSpeakError(ValueError):
    """A piece of text holds nothing that the talker can speak (only punctuation, say). It is passed over;
    a stream fails only if all its pieces are like that."""


@dataclass(frozen=True)
class ParameterSpec:
    """A float request parameter that a family adds to the common ones (for example wren's `speed`)."""

    default: float
    minimum: float
    maximum: float
    meaning: str


@dataclass(frozen=True)
class NoiseSpec:
    """Random numbers that a step wants per row: `count` of them, uniform in (0, 1) or standard normal."""

    count: int
    kind: Literal["uniform", "normal"] = "uniform"


@dataclass(frozen=True)
class SamplingParameters:
    """How codes are drawn. temperature 0 is greedy; top_k 0 and top_p 1 are off; repetition_penalty 1 is
    off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SpeechRequest:
    """One utterance as asked for, already validated.

    text: what is to be said, or its first part. reference_audio: float32 [samples] mono at `reference_rate`
        Hz.
    seed: 64-bit; with (frame, codebook) it determines all noise. max_frames: budget of the whole stream.
    text_open: more text may follow while the stream runs (op=append).
    """

    text: str
    speaker: str | None = None
    language: str | None = None
    instructions: str | None = None
    reference_audio: np.ndarray | None = None
    reference_rate: int = 0
    reference_text: str | None = None
    seed: int = 0
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_frames: int = 1500
    text_open: bool = False


@dataclass
class Prompt:
    """What a talker needs to speak one piece of text.

    inputs: [L, ...] what prefill consumes, L positions (embeddings [L, H], ids [L, C], phone features [P,
        F]).
    text_ids: ids that are fed one a frame after the prefill (text_mode "per_frame"), else empty.
    prefix_frames: [n, width] frames that count as already heard: the codec is primed with them and their
        audio is never sent (in-context cloning).
    max_frames: the piece's own budget, a guard against a talker that never ends.
    """

    inputs: torch.Tensor
    max_frames: int
    text_ids: list[int] = field(default_factory=list)
    prefix_frames: torch.Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class SamplingTable:
    """Sampling parameters of all slots, each a tensor [max_slots + 1] on the talker's device.

    A step reads `table.temperature[slots]`; the engine writes a stream's row when it is admitted.
    """

    temperature: torch.Tensor  # float32
    top_k: torch.Tensor  # int64
    top_p: torch.Tensor  # float32
    repetition_penalty: torch.Tensor  # float32
    extra: dict[str, torch.Tensor]  # float32, by the names in Talker.parameters


@dataclass
class StepOutput:
    """raw: int64 [B, R] or float32 [B, R], R = spec.width for whole-frame talkers. flags: int32 [B] of
    StepFlag."""

    raw: torch.Tensor
    flags: torch.Tensor


class Talker(ABC):
    """A family's autoregressive model over slots.

    text_mode: "full": a prompt needs its whole text; streams get further text as further prompts.
        "per_frame": one text id a frame, fed by `step`; -1 once the text has ended.
    speakers: names that the request parameter `voice` may give beside the voice's own.
    windowed: whether the family's codec wants each chunk with context frames before it (Codec.mode "window").
    prefill_chunk: positions that one prefill call may take at most, or None where a prompt cannot be cut
        (non-causal text encoders).
    """

    spec: FrameSpec
    text_mode: Literal["full", "per_frame"] = "full"
    noise: NoiseSpec
    defaults: SamplingParameters = SamplingParameters()
    parameters: Mapping[str, ParameterSpec] = {}
    speakers: tuple[str, ...] = ()
    windowed: bool = False
    prefill_chunk: int | None = None
    device: torch.device

    @abstractmethod
    def allocate(self, max_slots: int, max_length: int) -> None:
        """Make the state tensors for `max_slots` slots and the null slot, `max_length` positions each."""

    @abstractmethod
    def slot_bytes(self) -> int:
        """Bytes of state that one slot takes (after `allocate`)."""

    @abstractmethod
    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        """Text front end, on the CPU, in a thread of its own: turn one piece of text into a prompt.

        first: whether this is the stream's first piece. Raises ValueError with a message fit for the user
        if the text (or reference) cannot be spoken, NothingToSpeakError if there is nothing in it to speak.
        """

    def text_ready(self, request: SpeechRequest, text: str, first: bool) -> int:
        """How many leading characters of open text can be taken now; the rest waits for what follows.

        Only for text_mode "per_frame". first: whether it is the stream's first piece, which becomes a
        prompt. Called in the front-end thread. Raises ValueError as `build_prompt` does.
        """
        return len(text)

    def text_to_ids(self, text: str) -> list[int]:
        """Ids for text that arrives while the stream runs (text_mode "per_frame")."""
        raise NotImplementedError(f"{type(self).__name__} takes its text whole")

    @abstractmethod
    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        """Consume a run of prompt positions for B slots.

        slots: int64 [B]. inputs: [B, L, ...] padded to a length bucket. lengths: int64 [B], valid positions.
        begins: int64 [B], position of the run's first row in its prompt; 0 resets the slot's state.
        After the last run of a prompt the slot holds what its first `step` needs.
        """

    @abstractmethod
    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        """One step of B rows. Pure tensor code: no .item(), no shape that depends on data.

        slots: int64 [B]. text: int64 [B], next text id, -1 when the text has ended. noise: float32 [B,
            noise.count].
        length: a bucket >= positions in use of every row; attention may read only that much of the cache.

        A batch whose step raised is repeated row by row: what a second call would advance again (positions,
        counters) must be written last. Positions of the null slot grow without end.
        """

    def positions(self, prompt: Prompt, frames: int) -> int:
        """Cache positions in use after `frames` steps of `prompt`; the engine picks `length` buckets by
        it."""
        return prompt.inputs.shape[0] + frames

    def assembler(self) -> FrameAssembler | None:
        """A fresh assembler for one stream, or None if every raw row is a frame."""
        return None

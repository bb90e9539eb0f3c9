"""A stream as the talker engine sees it, and what one engine step gives back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from backends.frames import FrameAssembler
from backends.talker import Prompt, SpeechRequest


class ServerFull(Exception):  # noqa: N818 - it is the answer to a request, not a fault
    """All slots and all places in the queue are taken."""


@dataclass
class Piece:
    """The prompt that a stream is speaking."""

    prompt: Prompt
    length: int
    assembler: FrameAssembler | None
    step_limit: int
    prefilled: int = 0
    steps: int = 0
    frames: int = 0
    positions: int = 0  # in use after the next step


@dataclass(eq=False)
class SpeechStream:
    """One stream as the talker engine sees it. The upper half belongs to the serving layer.

    prompts: the next pieces of text, prepared by a front-end thread; the engine pops from the left.
    more_prompts: True as long as further prompts may be appended.
    text_ids: ids that are fed one a step (text_mode "per_frame"); text_ended: no further ids will come.
    paused: make no step, keep the slot (out of credit). deadline: when playback runs dry, monotonic seconds;
        decides who steps where more streams are ready than the largest batch bucket holds.

    slot: None while queued and after the end. frames: made so far. waiting_for_text: stalled for want of a
        prompt or of a text id. finish_reason: "stop", "length", "cancelled" or "error" once ended.
    """

    request: SpeechRequest
    prompts: deque[Prompt] = field(default_factory=deque)
    more_prompts: bool = True
    text_ids: deque[int] = field(default_factory=deque)
    text_ended: bool = False
    paused: bool = False
    deadline: float = 0.0

    slot: int | None = None
    frames: int = 0
    waiting_for_text: bool = False
    finish_reason: str | None = None
    piece: Piece | None = None
    cut: bool = False  # a piece ended at its budget
    last_step: int = 0

    @property
    def speaking(self) -> Piece:
        assert self.piece is not None
        return self.piece


@dataclass
class EngineStep:
    """What one call of `TalkerEngine.step` did.

    streams: the stream of each frame row, in the order made. frames: [n, width] int32 codes or float32
        latents.
    ended: streams that ended, with finish reason and, for "error", the exception.
    idle: nothing could be done.
    """

    streams: list[SpeechStream]
    frames: np.ndarray
    ended: list[tuple[SpeechStream, str, Exception | None]]
    idle: bool


@dataclass
class StepResults:
    """An EngineStep in the making."""

    streams: list[SpeechStream]
    frames: list[np.ndarray]
    ended: list[tuple[SpeechStream, str, Exception | None]]

    def stack(self, width: int, dtype: type) -> np.ndarray:
        if len(self.frames) == 1:
            return self.frames[0]
        return np.concatenate(self.frames) if self.frames else np.empty((0, width), dtype)

"""What a frame is: the unit that the talker makes and the codec turns into sound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class FrameSpec:
    """Shape and time base of the frames of one model family.

    kind: "codes" (K integer codes) or "latent" (D float32 values).
    width: K or D.
    sizes: valid ids per codebook (ids >= size never reach the codec); empty for latents.
    sample_rate: Hz. channels: 1 or 2. samples_per_frame: samples per channel.
    delay: rows by which codebook k lags behind codebook 0 in the talker's raw output (delay patterns of
        MusicGen, MOSS-TTS Delay, Higgs v2); all zero if the talker emits whole frames.
    steps_per_frame: talker steps that make one frame (7 for Orpheus over SNAC), else 1.
    """

    kind: Literal["codes", "latent"]
    width: int
    sizes: tuple[int, ...]
    sample_rate: int
    channels: int
    samples_per_frame: int
    delay: tuple[int, ...] = ()
    steps_per_frame: int = 1

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.kind == "codes" else torch.float32

    @property
    def seconds(self) -> float:
        """Duration of one frame in seconds."""
        return self.samples_per_frame / self.sample_rate

    @property
    def whole_frames(self) -> bool:
        """True if every raw row that a talker emits is one finished frame."""
        return self.steps_per_frame == 1 and not any(self.delay)


class FrameAssembler(ABC):
    """Turns the raw rows of one stream into frames: undoes delays, groups tokens, drops special rows.

    Host side, one object a stream, only for families whose `FrameSpec.whole_frames` is False.
    """

    @abstractmethod
    def push(self, raw: torch.Tensor) -> torch.Tensor:
        """Take one raw row [width of the talker's output]; return the frames [n, spec.width] it completes."""

    @abstractmethod
    def flush(self) -> torch.Tensor:
        """Return the frames [n, spec.width] that are complete once the talker has ended."""

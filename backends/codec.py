"""The interface between the codec engine and a model family's codec (frames to audio).

Modes, and what streaming costs in each:
state: causal codec; a slot holds all history, T new frames in, T * samples_per_frame samples out, exact.
window: non-causal codec; every call gets `left` frames of context before and `right` frames after what it emits.
rerun: accumulate-and-rerun decoders (flow matching over all frames so far); the slot keeps the frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch

from backends.frames import FrameSpec


@dataclass
class DecodeOutput:
    """pcm: float32 [B, channels, N]. count: int64 [B], valid samples of each row, from 0.
    first: int64 [B], absolute position in the stream of each row's first sample (per channel)."""

    pcm: torch.Tensor
    first: torch.Tensor
    count: torch.Tensor


class Codec(ABC):
    """A family's decoder over slots; tensors of state have `slots + 1` rows, the last is the null slot.

    left, right: frames of context before and look-ahead after (window mode). hop: grid on which `rerun`
    codecs consume frames. tail_loss: samples that the model never produces at the end of a stream
    (Qwen3-Omni: 555).
    """

    spec: FrameSpec
    mode: Literal["state", "window", "rerun"]
    left: int = 0
    right: int = 0
    hop: int = 1
    tail_loss: int = 0
    device: torch.device

    @abstractmethod
    def allocate(self, slots: int) -> None:
        """Make the state tensors for `slots` slots and the null slot."""

    @abstractmethod
    def slot_bytes(self) -> int:
        """Bytes of state that one slot takes (after `allocate`)."""

    @abstractmethod
    def open(self, slots: torch.Tensor) -> None:
        """Reset the state of slots [B] for new streams."""

    def ready(self, have: int, done: int, ended: bool) -> int:
        """Frames that may be consumed now, out of `have` received and `done` consumed; 0 means wait.

        The default fits `state`: everything. Windowed codecs hold back their look-ahead until the stream
        ended, `rerun` codecs stay on their grid.
        """
        return have - done

    @abstractmethod
    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        """Turn frames into audio. Pure tensor code over fixed shapes (B, T), can be captured.

        slots: int64 [B]. frames: [B, T, width] int64 codes or float32 latents. lengths: int64 [B], valid frames
        of each row (T for all but a terminal flush). final: bool [B], row ends its stream: only such
        a row may be shorter than T, and its state after the call does not matter.
        """

    def close(self, slots: torch.Tensor) -> None:
        """Forget streams; their slots [B] may be opened again."""

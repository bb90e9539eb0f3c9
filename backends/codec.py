"""The interface between the codec engine and a model family's codec (frames to audio).

Modes, and what streaming costs in each:
state: causal codec; a slot holds all history, T new frames in, T * samples_per_frame samples out, exact.
window: non-causal codec; every call gets `left` frames of context before and `right` frames after what it
    emits. The engine keeps those frames; `decode` is stateless and turns a window into the window's audio.
rerun: accumulate-and-rerun decoders (flow matching over all frames so far). The engine keeps the frames;
    `decode` is stateless, gets the whole stream so far, padded on the right, and makes its audio again.
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
    first: int64 [B], position of each row's first sample (per channel): in the stream (state, rerun), or in
        the window (window). None of the three may share memory with state: they must outlive later
        calls."""

    pcm: torch.Tensor
    first: torch.Tensor
    count: torch.Tensor


class Codec(ABC):
    """A family's decoder over slots; tensors of state have `slots + 1` rows, the last is the null slot.

    left, right: frames of context before and look-ahead after (window mode; rerun codecs may have
        look-ahead).
    hop: grid on which frames are consumed. longest: most frames of one stream that calls are prepared for
    (rerun mode; longer ones run unprepared). holds_back: samples that a call leaves for the next one
    although all their frames are there (state mode); an empty last chunk is decoded only if there are any.
    tail_loss: samples that the model never produces at the end of a stream (Qwen3-Omni: 555).
    """

    spec: FrameSpec
    mode: Literal["state", "window", "rerun"]
    left: int = 0
    right: int = 0
    hop: int = 1
    longest: int = 0
    holds_back: int = 0
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

        Both count from the stream's start, a prefix that only primes the codec included. All that is left
        once the stream has ended; before, the look-ahead is held back and consumption ends on the grid.
        """
        if ended:
            return have - done
        return max(0, (have - self.right) // self.hop * self.hop - done)

    @abstractmethod
    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        """Turn frames into audio. Pure tensor code over fixed shapes (B, T), can be captured.

        slots: int64 [B]. frames: [B, T, width] int64 codes or float32 latents. lengths: int64 [B], valid
            frames of each row. final: bool [B], row ends its stream.

        state: frames are new ones; only a final row may be shorter than T, and its state after the call
            does not matter. State must be written last, after everything that can fail: a call that raised
            is repeated row by row.
        window: lengths is T. The audio of frame t of the window is samples t * samples_per_frame on.
        rerun: frames are all of the stream, rows may be shorter than T; a row that is not final gives the
            audio of its first `length - right` frames.
        """

    def close(self, slots: torch.Tensor) -> None:  # noqa: B027 - most codecs have nothing to do
        """Forget streams; their slots [B] may be opened again."""

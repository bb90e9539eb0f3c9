"""Checks the audio of a paced voice while it arrives: each sample says which one it is."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from backends.families.paced import BITS, GROUP, SAMPLES_PER_FRAME, STAMP_SECONDS, numbers, stamp_age
from client.audio import AudioChunk


class PacedCheck:
    """Takes the chunks of one stream in order. fault: the first thing that was wrong, None as long as all is
    well.

    tag: the seed that was asked for. frames: how many the text makes.
    made_to_arrival: seconds from the first frame's making to the first chunk's arrival. work: seconds between
    the talker's beginning with the stream and the making of the last frame of its first chunk, what the
    talker itself took.
    """

    def __init__(self, tag: int, frames: int) -> None:
        self._tag = tag & ((1 << BITS) - 1)
        self._frames = frames
        self._next = 0
        self.fault: str | None = None
        self.made_to_arrival: float | None = None
        self.work: float | None = None

    def chunk(self, chunk: AudioChunk) -> None:
        """A chunk as it arrived."""
        samples = chunk.samples
        if self.fault is None:
            self.fault = self._examine(samples)
        self._next += len(samples)

    def end(self) -> None:
        """The stream has ended: is it whole?"""
        expected = self._frames * SAMPLES_PER_FRAME
        if self.fault is None and self._next != expected:
            self.fault = f"{self._next} samples came, {expected} were due"

    def _examine(self, samples: npt.NDArray[np.float32]) -> str | None:
        if len(samples) % SAMPLES_PER_FRAME:
            return f"a chunk of {len(samples)} samples is no whole number of frames"
        if not len(samples):
            return None
        found = numbers(samples).reshape(-1, GROUP)
        position, tag, made, started = found.T
        if self._next == 0:
            self.made_to_arrival = stamp_age(time.monotonic(), int(made[-1]))
            self.work = ((int(made[-1]) - int(started[-1])) & ((1 << BITS) - 1)) * STAMP_SECONDS
        foreign = tag != self._tag
        if foreign.any():
            where = self._next + GROUP * int(foreign.argmax())
            return f"sample {where} belongs to stream {int(tag[foreign.argmax()])}, not {self._tag}"
        expected = np.arange(len(position)) + self._next // GROUP
        wrong = position != expected
        if wrong.any():
            first = int(wrong.argmax())
            there, due = GROUP * int(position[first]), GROUP * int(expected[first])
            return f"sample {there} came where sample {due} was due"
        return None

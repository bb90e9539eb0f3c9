"""What arrives: chunks of audio, and the whole of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client.trace import Trace
from client.wav import WavWriter


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """One response of the server.

    samples: float32 in [-1, 1], [n] for mono or [n, channels], read-only. first_sample: position of the chunk
    in the stream, in samples per channel. frames: codec frames in the chunk. arrival_seconds: since the
    request was sent. finish_reason: None until the last chunk, then stop, length, cancelled or error.
    """

    index: int
    first_sample: int
    samples: npt.NDArray[np.float32]
    frames: int
    sample_rate: int
    channels: int
    arrival_seconds: float
    finish_reason: str | None

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


@dataclass(frozen=True, eq=False)
class Utterance:
    """A whole stream: its audio ([n] or [n, channels]), how it arrived and why it ended.

    A stream without any frame has no samples and no sample rate.
    """

    samples: npt.NDArray[np.float32]
    sample_rate: int | None
    channels: int
    finish_reason: str | None
    chunks: tuple[AudioChunk, ...]
    trace: Trace

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate if self.sample_rate else 0.0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a 16-bit WAV file. Raises ValueError if there is no audio."""
        if self.sample_rate is None:
            raise ValueError("the utterance has no audio to save")
        with WavWriter(path, self.sample_rate, self.channels) as writer:
            writer.write(self.samples)


def utterance_of(chunks: list[AudioChunk], trace: Trace) -> Utterance:
    """Join the chunks of a finished stream."""
    samples = np.concatenate([chunk.samples for chunk in chunks]) if chunks else np.zeros(0, np.float32)
    return Utterance(
        samples=samples,
        sample_rate=chunks[0].sample_rate if chunks else None,
        channels=chunks[0].channels if chunks else 1,
        finish_reason=trace.finish_reason,
        chunks=tuple(chunks),
        trace=trace,
    )

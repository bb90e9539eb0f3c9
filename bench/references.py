"""Speech whose every sample is known: texts and seeds, spoken once each on the idle server.

The same seed gives the same audio alone and among others, so whatever arrives of a stream can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client import AsyncTTSClient

TOLERANCE = 1e-5  # of full scale; batches of other sizes add in another order

SHORT = ("Yes.", "Good morning.", "It is half past nine.", "Please hold the line.", "No, thank you.")
MEDIUM = (
    "The kettle is on, and the tea will be ready in a minute.",
    "Turn left after the bridge, then follow the river.",
    "Call 555 0199 before 5 p.m. on the 3rd of May.",
)
LONG = (
    "Water boils at a lower temperature on a mountain, because the air presses less on it. The museum is "
    "closed on Mondays. On other days it opens at nine and closes at six.",
)


@dataclass(frozen=True)
class Reference:
    """A request and the audio that it must bring, float32 [samples]."""

    text: str
    seed: int
    samples: npt.NDArray[np.float32]


class Comparison:
    """Compares a stream with its reference while it arrives. fault: the first difference, for people."""

    def __init__(self, reference: Reference) -> None:
        self._expected = reference.samples
        self.position = 0
        self.fault: str | None = None

    def chunk(self, samples: npt.NDArray[np.float32]) -> None:
        end = self.position + len(samples)
        expected = self._expected[self.position : end]
        if self.fault is None:
            if len(expected) < len(samples):
                self.fault = f"{end - len(self._expected)} samples too many"
            elif len(samples) and (worst := float(np.abs(samples - expected).max())) > TOLERANCE:
                self.fault = f"samples {self.position} to {end} differ by {worst:.2g}"
        self.position = end

    def end(self) -> None:
        """The stream says that it is complete."""
        if self.fault is None and self.position < len(self._expected):
            self.fault = f"{len(self._expected) - self.position} samples are missing at the end"


@dataclass(frozen=True)
class KnownSpeech:
    """References of three lengths: under two seconds, about four, about twelve."""

    short: Sequence[Reference]
    medium: Sequence[Reference]
    long: Sequence[Reference]


async def speak_all(url: str, seeds: Sequence[int] = (1, 2)) -> KnownSpeech:
    """On an otherwise idle server."""
    return KnownSpeech(
        await speak_references(url, SHORT, seeds),
        await speak_references(url, MEDIUM, seeds),
        await speak_references(url, LONG, seeds),
    )


async def speak_references(url: str, texts: Sequence[str], seeds: Sequence[int]) -> list[Reference]:
    """Each text with each seed, one after the other."""
    references = []
    async with AsyncTTSClient(url) as client:
        for text in texts:
            for seed in seeds:
                utterance = await client.say(text, seed=seed)
                references.append(Reference(text, seed, np.asarray(utterance.samples)))
    return references

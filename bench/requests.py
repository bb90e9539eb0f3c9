"""What the requests of a measurement say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.families.paced import frames_of
from bench.load import Job
from bench.paced_audio import PacedCheck
from bench.session import MakeJobs
from bench.texts import spread_lengths, texts_of_length


def paced_jobs(
    mean: float, spread: float, segment_chars: int, options: Mapping[str, Any] | None = None
) -> MakeJobs:
    """Requests for a paced voice: texts of log-normal length (a character is a frame), audio checked sample
    by sample."""

    def make(count: int, seed: int) -> list[Job]:
        texts = texts_of_length(spread_lengths(count, mean, spread, seed))
        return [
            Job(
                text,
                {**(options or {}), "seed": tag},
                PacedCheck(tag, frames_of(text, segment_chars)),
            )
            for tag, text in enumerate(texts, start=1 + 100_003 * (seed + 1))
        ]

    return make


def spoken_jobs(texts: Sequence[str], options: Mapping[str, Any] | None = None) -> MakeJobs:
    """Requests for a real voice: the texts in turn, each with a seed of its own."""

    def make(count: int, seed: int) -> list[Job]:
        return [
            Job(texts[(i + seed) % len(texts)], {"seed": 1_000 * (seed + 1) + i, **(options or {})})
            for i in range(count)
        ]

    return make


def read_texts(path: Path) -> list[str]:
    """One text a line; blank lines are left out. Raises ValueError if none is left."""
    texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{path} holds no text; give one text a line")
    return texts

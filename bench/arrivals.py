"""When requests start: as the last one ends (closed loop), or at random times of their own (open loop)."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class ClosedLoop:
    """So many clients, each of which sends its next request as soon as its last one has ended."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be at least 1")

    def __str__(self) -> str:
        return f"C{self.concurrency}"


@dataclass(frozen=True)
class OpenLoop:
    """Poisson arrivals, `rate` requests a second, whether earlier ones have ended or not."""

    rate: float

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ValueError(f"rate is {self.rate}; it must be above 0")

    def __str__(self) -> str:
        return f"{self.rate:g}/s"

    def starts(self, count: int, seed: int) -> list[float]:
        """Seconds from the beginning at which each request starts; the same for the same seed."""
        source = random.Random(seed)
        times, now = [], 0.0
        for _ in range(count):
            now += source.expovariate(self.rate)
            times.append(now)
        return times


Load = ClosedLoop | OpenLoop

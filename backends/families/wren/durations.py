"""When phones end: from the alignment head's distribution to the phones of a frame's ticks.

The head says, for the eight ticks of the next frame at once, at which of them a phone ends: one of 256
patterns, bit j for tick j. Taking the likeliest pattern makes speech far too slow, because "no end
here" nearly always is likelier; so the median rule of survival analysis is used: multiply up the
probability that the phone has not ended yet, tick by tick, and end it once that falls below one half.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from backends.families.wren.geometry import TICKS_PER_FRAME
from backends.families.wren.step_input import MAX_ELAPSED

PATTERNS = 1 << TICKS_PER_FRAME


class Pointers(NamedTuple):
    """Where each row stands after a frame.

    ticks: int64 [B, TICKS_PER_FRAME + 1], index of the phone that sounds in each tick and of the one
    after the frame. elapsed: int64, same shape, ticks that it has sounded before, at most MAX_ELAPSED.
    survival: float32 [B].
    """

    ticks: torch.Tensor
    elapsed: torch.Tensor
    survival: torch.Tensor


class MedianDurations:
    """The rule, over rows, from constant tables."""

    def __init__(self, device: torch.device) -> None:
        self.sums = _prefix_sums().to(device)
        self.walks = _walks().to(device)
        self.counting = torch.arange(TICKS_PER_FRAME + 1, device=device)

    def advance(
        self,
        patterns: torch.Tensor,
        *,
        survival: torch.Tensor,
        speed: torch.Tensor,
        pointer: torch.Tensor,
        elapsed: torch.Tensor,
        phones: torch.Tensor,
    ) -> Pointers:
        """Move on by one frame.

        patterns: probabilities float32 [B, PATTERNS], at least MINIMUM_ROWS rows. survival: float32 [B]
        of the phone that sounds. speed: float32 [B], exponent of the survival: above 1 phones end
        sooner. pointer, elapsed: int64 [B] before the frame. phones: int64 [B], length of the text;
        beyond it nothing ends.
        """
        without, both = (patterns @ self.sums).chunk(2, 1)
        kept = (without / (both + 1e-9)) ** speed[:, None]
        alive = survival[:, None]
        pattern = torch.zeros_like(pointer)[:, None]
        for tick in range(TICKS_PER_FRAME):
            first = (1 << tick) - 1
            alive = alive * kept[:, first : first + (1 << tick)].gather(1, pattern)
            ends = alive < 0.5
            alive = alive.masked_fill(ends, 1.0)
            pattern = torch.add(pattern, ends, alpha=1 << tick)
        left = (phones - pointer).clamp(0, TICKS_PER_FRAME)
        passed, since = self.walks[left * PATTERNS + pattern[:, 0]].unbind(1)
        unbroken = elapsed[:, None] + self.counting
        return Pointers(
            ticks=pointer[:, None] + passed,
            elapsed=torch.where(since < 0, unbroken, since).clamp(max=MAX_ELAPSED),
            survival=alive[:, 0],
        )


def _prefix_sums() -> torch.Tensor:
    """float32 [PATTERNS, 2 * (PATTERNS - 1)], which sums the patterns' probabilities by how they begin.

    Column (2^j - 1) + p: patterns whose first j bits are p and whose bit j is 0. PATTERNS - 1 columns
    on: those with either bit j.
    """
    patterns = torch.arange(PATTERNS)
    without, both = [], []
    for tick in range(TICKS_PER_FRAME):
        for prefix in range(1 << tick):
            begins = (patterns & ((1 << tick) - 1)) == prefix
            without.append(begins & ((patterns >> tick) & 1 == 0))
            both.append(begins)
    return torch.stack(without + both, 1).float()


def _walks() -> torch.Tensor:
    """int64 [(TICKS_PER_FRAME + 1) * PATTERNS, 2, TICKS_PER_FRAME + 1]: what a pattern does if so many
    phones are left.

    Row left * PATTERNS + pattern holds, before each tick and after the last, the phones ended so far,
    and the ticks since the last end, -1 if there was none.
    """
    walks = []
    for left in range(TICKS_PER_FRAME + 1):
        for pattern in range(PATTERNS):
            passed, since = 0, -1
            steps = [(passed, since)]
            for tick in range(TICKS_PER_FRAME):
                if pattern >> tick & 1 and passed < left:
                    passed, since = passed + 1, 0
                elif since >= 0:
                    since += 1
                steps.append((passed, since))
            walks.append(list(zip(*steps, strict=True)))
    return torch.tensor(walks)

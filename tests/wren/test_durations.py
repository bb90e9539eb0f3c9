"""The median rule: a phone ends at the tick at which it has more likely ended than not."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.families.wren.durations import PATTERNS, MedianDurations
from backends.families.wren.step_input import MAX_ELAPSED

RULE = MedianDurations(torch.device("cpu"))


def walk(
    patterns: list[float], survival: float, speed: float, pointer: int, elapsed: int, phones: int
) -> tuple[list[int], list[int], float]:
    """The rule tick by tick, as it is defined."""
    possible = set(range(PATTERNS))
    ticks, times = [], []
    for tick in range(8):
        ends = sum(patterns[p] for p in possible if p >> tick & 1)
        goes_on = sum(patterns[p] for p in possible if not p >> tick & 1)
        survival *= (goes_on / (goes_on + ends + 1e-9)) ** speed
        end = survival < 0.5
        if end:
            survival = 1.0
        possible = {p for p in possible if (p >> tick & 1) == end}
        ticks.append(pointer)
        times.append(min(elapsed, MAX_ELAPSED))
        elapsed += 1
        if end and pointer < phones:
            pointer, elapsed = pointer + 1, 0
    return [*ticks, pointer], [*times, min(elapsed, MAX_ELAPSED)], survival


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sharpness=st.floats(0.1, 12.0),
    survival=st.floats(0.5, 1.0),
    speed=st.floats(0.5, 2.0),
    pointer=st.integers(0, 12),
    elapsed=st.integers(0, MAX_ELAPSED),
)
def test_rows_walk_as_the_definition_says(
    seed: int, sharpness: float, survival: float, speed: float, pointer: int, elapsed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    patterns = (torch.randn(4, PATTERNS, generator=generator) * sharpness).softmax(1)
    rows = torch.ones(4, dtype=torch.int64)
    after = RULE.advance(
        patterns,
        survival=rows * survival,
        speed=rows * speed,
        pointer=rows * pointer,
        elapsed=rows * elapsed,
        phones=torch.tensor([12, 13, 14, 60]),
    )
    for row, phones in enumerate((12, 13, 14, 60)):
        ticks, times, left = walk(patterns[row].tolist(), survival, speed, pointer, elapsed, phones)
        assert after.ticks[row].tolist() == ticks
        assert after.elapsed[row].tolist() == times
        torch.testing.assert_close(after.survival[row], torch.tensor(left), atol=1e-5, rtol=1e-5)


def test_the_pointer_stops_after_the_last_phone() -> None:
    every_tick = torch.zeros(4, PATTERNS)
    every_tick[:, PATTERNS - 1] = 1
    ones = torch.ones(4)
    after = RULE.advance(
        every_tick,
        survival=ones,
        speed=ones,
        pointer=torch.tensor([0, 5, 8, 9]),
        elapsed=torch.zeros(4, dtype=torch.int64),
        phones=torch.full((4,), 9),
    )
    assert after.ticks[:, -1].tolist() == [8, 9, 9, 9]
    assert after.elapsed[:, -1].tolist() == [0, 4, 7, 8]


def test_a_phone_without_an_end_in_sight_goes_on() -> None:
    never = torch.zeros(4, PATTERNS)
    never[:, 0] = 1
    ones = torch.ones(4)
    after = RULE.advance(
        never,
        survival=ones * 0.7,
        speed=ones,
        pointer=torch.full((4,), 3),
        elapsed=torch.full((4,), 38),
        phones=torch.full((4,), 9),
    )
    assert after.ticks[0].tolist() == [3] * 9
    assert after.elapsed[0].tolist() == [38, 39, *[MAX_ELAPSED] * 7]
    torch.testing.assert_close(after.survival, ones * 0.7)

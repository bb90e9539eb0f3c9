"""From raw rows to frames."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.assemblers import DelayAssembler, TokenGroupAssembler
from backends.frames import FrameAssembler, FrameSpec

DELAY = FrameSpec("codes", 3, (10, 10, 10), 24_000, 1, 480, delay=(0, 1, 3))
GROUP = FrameSpec("codes", 3, (4, 4, 4), 24_000, 1, 480, steps_per_frame=3)


def push(assembler: FrameAssembler, rows: list[list[int]]) -> list[list[int]]:
    frames = [f for row in rows for f in assembler.push(torch.tensor(row)).tolist()]
    return frames + assembler.flush().tolist()


@given(frames=st.lists(st.tuples(*[st.integers(0, 9)] * 3), max_size=12))
def test_a_delay_pattern_is_undone(frames: list[tuple[int, int, int]]) -> None:
    start, end = 10, 11
    rows = [
        [
            start if t < lag else end if t - lag >= len(frames) else frames[t - lag][k]
            for k, lag in enumerate(DELAY.delay)
        ]
        for t in range(len(frames) + 4)
    ]
    assert push(DelayAssembler(DELAY), rows) == [list(f) for f in frames]


def test_a_delayed_frame_comes_with_its_last_code() -> None:
    assembler = DelayAssembler(DELAY)
    counts = [len(assembler.push(torch.tensor([t, t, t]))) for t in range(6)]
    assert counts == [0, 0, 0, 1, 1, 1]


def test_an_assembler_keeps_no_view_of_the_row_it_got() -> None:
    assembler = DelayAssembler(DELAY)
    row = torch.tensor([1, 1, 1])
    frames = []
    for t in range(5):
        row.fill_(t)
        frames += assembler.push(row).tolist()
    assert frames == [[0, 1, 3], [1, 2, 4]]


@given(frames=st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12))
def test_tokens_are_grouped_and_lose_the_offsets_of_their_places(frames: list[tuple[int, int, int]]) -> None:
    tokens = [[100 + 4 * i + code] for frame in frames for i, code in enumerate(frame)]
    assert push(TokenGroupAssembler(GROUP, first_token=100), tokens) == [list(f) for f in frames]


def test_code_zero_is_a_code() -> None:
    assert push(TokenGroupAssembler(GROUP), [[0], [4], [8]]) == [[0, 0, 0]]


def test_after_a_malformed_token_the_next_frame_starts_at_its_first_place() -> None:
    good = [[0], [5], [10]]
    for bad in ([[1], [9]], [[1], [5], [99]], [[5]], [[1], [2]]):
        assert push(TokenGroupAssembler(GROUP), [*bad, *good, *good]) == [[0, 1, 2]] * 2


def test_an_incomplete_group_is_dropped() -> None:
    assert push(TokenGroupAssembler(GROUP), [[0], [5], [10], [1]]) == [[0, 1, 2]]

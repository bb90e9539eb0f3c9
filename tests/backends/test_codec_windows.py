"""How a stream's frames are cut into codec calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.codec import Codec
from backends.codec_windows import PLANNERS, Planner, call_sizes, split_exactly
from backends.frames import FrameSpec

SPEC = FrameSpec("codes", 1, (10_000,), 1000, 1, 10)


def codec(mode: str, **facts: Any) -> Any:
    """The facts of a codec that planning needs."""
    defaults = {"left": 0, "right": 0, "hop": 1, "longest": 0, "holds_back": 0, "spec": SPEC, "mode": mode}
    made = SimpleNamespace(**{**defaults, **facts})
    made.ready = lambda *args: Codec.ready(made, *args)
    return made


def plan(
    facts: Any, sizes: tuple[int, ...], chunks: list[int], prefix: int = 0, loss: int = 0
) -> list[list[tuple[int, int, int]]]:
    """Play chunks of these sizes; for each its calls as (T, first frame, frames). Every call makes all
    samples of its frames but `loss`."""
    spf = SPEC.samples_per_frame
    total = sum(chunks)
    frames = np.arange(-prefix, total)[:, None]
    planner: Planner = PLANNERS[facts.mode](facts, sizes, frames[:prefix])
    begin, out = prefix, []
    for i, size in enumerate(chunks):
        planner.receive(frames[begin : begin + size], i == len(chunks) - 1)
        begin += size
        calls = []
        while (call := planner.next_call()) is not None:
            assert len(call.frames) <= call.size
            at = int(call.frames[0, 0]) if len(call.frames) else planner.have
            np.testing.assert_array_equal(call.frames[:, 0], np.arange(at, at + len(call.frames)))
            calls.append((call.size, at, len(call.frames)))
            if facts.mode == "state":
                planner.emitted = max(planner.emitted, (at + len(call.frames)) * spf - loss)
            else:
                planner.emitted = int(
                    max(planner.emitted, min(call.stop, (at + len(call.frames)) * spf - loss))
                )
            planner.made(call)
        out.append(calls)
    assert planner.emitted == total * spf - loss
    return out


# Causal codecs with state.


def test_state_each_frame_goes_through_once() -> None:
    calls = plan(codec("state"), (1, 2, 4), [1, 2, 4, 4])
    assert calls == [[(1, 0, 1)], [(2, 1, 2)], [(4, 3, 4)], [(4, 7, 4)]]


def test_state_only_the_last_chunk_is_padded() -> None:
    assert plan(codec("state"), (2, 4, 8), [2, 3])[-1] == [(4, 2, 3)]
    assert plan(codec("state"), (2, 4, 8), [3, 2])[0] == [(3, 0, 3)]


def test_state_a_long_last_chunk_takes_several_calls() -> None:
    assert plan(codec("state"), (2, 4, 8), [2, 21])[-1] == [(8, 2, 8), (8, 10, 8), (8, 18, 5)]


def test_state_an_empty_last_chunk_needs_a_call_only_where_samples_are_held_back() -> None:
    assert plan(codec("state"), (2, 4), [2, 0])[-1] == []
    assert plan(codec("state", holds_back=3), (2, 4), [2, 0])[-1] == [(2, 2, 0)]
    assert plan(codec("state", holds_back=3), (2, 4), [0]) == [[]]


def test_state_a_prefix_is_heard_first_in_prepared_sizes() -> None:
    calls = plan(codec("state"), (2, 4, 8, 15), [2, 4], prefix=37)
    sizes = [size for size, _, _ in calls[0]]
    assert sizes[:-1] == split_exactly(37, (2, 4, 8, 15))
    assert sum(sizes[:-1]) == 37
    assert set(sizes) <= {2, 4, 8, 15}
    assert calls[1] == [(4, 2, 4)]


@settings(max_examples=60, deadline=None)
@given(total=st.integers(0, 200), sizes=st.sets(st.integers(1, 20), max_size=5))
def test_split_exactly_meets_the_total_and_leaves_as_little_as_any_sum_can(
    total: int, sizes: set[int]
) -> None:
    parts = split_exactly(total, sorted(sizes))
    assert sum(parts) == total
    odd = [p for p in parts if p not in sizes]
    assert len(odd) <= 1
    sums = {0}
    for n in range(1, total + 1):
        if any(n - s in sums for s in sizes):
            sums.add(n)
    assert sum(odd) == total - max(sums)


# Codecs that need context and look-ahead.


def test_window_context_before_and_look_ahead_after() -> None:
    facts = codec("window", left=3, right=2)
    sizes = call_sizes(facts, (4,))
    assert sizes == (4, 8, 9)
    # Frames 0 to 1 can be emitted of the first four, and so on.
    assert plan(facts, sizes, [4, 4, 4, 4]) == [[(4, 0, 4)], [(8, 0, 8)], [(9, 3, 9)], [(9, 7, 9)]]


def test_window_the_look_ahead_comes_out_with_an_empty_last_chunk() -> None:
    facts = codec("window", left=3, right=2)
    calls = plan(facts, call_sizes(facts, (4,)), [4, 4, 0])
    # Frames 6 and 7 with what was before them, filled up to a prepared size.
    assert calls[-1] == [(8, 0, 8)]


def test_window_a_short_last_chunk_is_filled_up_with_older_frames() -> None:
    facts = codec("window", left=3, right=0)
    sizes = call_sizes(facts, (4, 8))
    assert sizes == (4, 7, 8, 11)
    assert plan(facts, sizes, [8, 8, 1])[-1] == [(4, 13, 4)]
    assert plan(facts, sizes, [8, 8, 2])[-1] == [(7, 11, 7)]


def test_window_a_stream_shorter_than_every_size_is_decoded_as_it_is() -> None:
    facts = codec("window", left=3, right=2)
    assert plan(facts, call_sizes(facts, (4,)), [3]) == [[(3, 0, 3)]]


def test_window_a_long_last_chunk_takes_several_calls() -> None:
    facts = codec("window", left=3, right=2)
    calls = plan(facts, call_sizes(facts, (4,)), [4, 4, 30])[-1]
    assert {size for size, _, _ in calls} <= {8, 9}
    assert sum(calls[-1][1:]) == 38


def test_window_samples_that_a_call_leaves_out_begin_the_next_window() -> None:
    facts = codec("window", left=1)
    # Samples 35 to 39 of frame 3 are still owed, so the second window reaches back to frame 2.
    assert plan(facts, (1, 2, 4, 6), [4, 4], loss=5) == [[(4, 0, 4)], [(6, 2, 6)]]


def test_window_a_prefix_is_context_and_never_emitted() -> None:
    facts = codec("window", left=3, right=2)
    calls = plan(facts, call_sizes(facts, (4,)), [4, 4], prefix=6)
    assert calls == [[(8, -4, 8)], [(9, -1, 9)]]


@settings(max_examples=60, deadline=None)
@given(
    left=st.integers(0, 6),
    right=st.integers(0, 6),
    prefix=st.sampled_from([0, 0, 2, 9]),
    picks=st.lists(st.sampled_from([1, 3, 5]), max_size=12),
    last=st.integers(0, 5),
)
def test_window_every_call_has_its_context_and_look_ahead(
    left: int, right: int, prefix: int, picks: list[int], last: int
) -> None:
    facts = codec("window", left=left, right=right)
    sizes = call_sizes(facts, (1, 3, 5))
    calls = plan(facts, sizes, [*picks, last], prefix)  # asserts that all comes out, in order
    have = done = 0
    for size, chunk in zip([*picks, last], calls, strict=True):
        have += size
        for t, begin, count in chunk:
            assert count == t
            assert begin <= max(-prefix, done - left)
            assert begin + count <= have
            done = max(done, begin + count - right)
        if chunk and size in picks and have < sum(picks):
            assert all(t in sizes for t, _, _ in chunk)


# Codecs that run over the whole stream.


def test_rerun_consumes_on_its_grid_and_hears_the_whole_stream() -> None:
    facts = codec("rerun", hop=4, right=3, longest=40)
    sizes = call_sizes(facts, ())
    assert sizes == (7, 11, 19, 35, 40)
    calls = plan(facts, sizes, [5, 5, 5, 3])
    assert calls == [[], [(7, 0, 7)], [(19, 0, 15)], [(19, 0, 18)]]


def test_rerun_the_grid_counts_the_prefix() -> None:
    facts = codec("rerun", hop=4, right=0, longest=40)
    assert plan(facts, call_sizes(facts, ()), [4, 4], prefix=2) == [[(4, -2, 4)], [(16, -2, 10)]]


def test_rerun_streams_beyond_the_longest_run_as_they_are() -> None:
    facts = codec("rerun", hop=4, longest=8)
    assert plan(facts, call_sizes(facts, ()), [8, 4]) == [[(8, 0, 8)], [(12, 0, 12)]]


# Sizes to prepare.


def test_call_sizes_of_a_stateful_codec_are_the_chunk_sizes() -> None:
    assert call_sizes(codec("state"), (2, 1, 15, 2)) == (1, 2, 15)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (2, 2), (10, 10)])
def test_call_sizes_of_a_windowed_codec_are_chunks_after_every_context(left: int, right: int) -> None:
    full = left + right
    reachable = {min(full, a * 2 + b * 5) for a in range(20) for b in range(20)}
    expected = {before + chunk for before in reachable for chunk in (2, 5)}
    assert set(call_sizes(codec("window", left=left, right=right), (2, 5))) == expected

"""What holds for every policy, stream length and way of polling, and the buffer's own rules."""

import sys

import numpy as np
import pytest
from chunk_streams import drain, play
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_policies import (
    ChunkPolicy,
    ChunkSchedule,
    FixedChunkPolicy,
    LeftContextChunkPolicy,
    RampChunkPolicy,
    ScheduledLeftContextChunkPolicy,
    SlidingWindowChunkPolicy,
    StreamBuffer,
)

small = st.integers(1, 12)


@st.composite
def policies(draw) -> tuple[ChunkPolicy, int]:
    """A policy and how many items it is primed with."""
    kind = draw(st.sampled_from(["fixed", "ramp", "sliding", "left", "scheduled", "adaptive"]))
    if kind == "fixed":
        return FixedChunkPolicy(draw(small)), 0
    if kind == "ramp":
        size = draw(small)
        return RampChunkPolicy(
            draw(small), size, growth=draw(st.floats(1, 3)), max_chunk=size + draw(small)
        ), 0
    if kind == "sliding":
        window = draw(small)
        return SlidingWindowChunkPolicy(window, draw(st.integers(1, window))), 0
    context = draw(st.integers(0, 12))
    policy: ChunkPolicy
    if kind == "left":
        policy = LeftContextChunkPolicy(context + draw(small), context)
    elif kind == "scheduled":
        policy = ScheduledLeftContextChunkPolicy(draw(st.lists(small, max_size=4)), draw(small), context)
    else:
        schedule = ChunkSchedule.from_mapping(
            {
                "codec_chunk_adaptive": True,
                "codec_chunk_frames": draw(small),
                "codec_left_context_frames": context,
            }
        )
        ticks = iter(range(10**9))
        policy = schedule.policy(clock=lambda: 0.02 * next(ticks), frame_seconds=0.08, windowed=True)
    primed = draw(st.integers(0, context))
    policy.prime(primed)
    return policy, primed


@settings(max_examples=300, deadline=None)
@given(
    policies(),
    st.integers(0, 90),
    st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 3)), max_size=30),
)
def test_invariants(policy_and_primed, total, polls):
    policy, primed = policy_and_primed
    chunks = play(policy, total, polls)

    new = [item for chunk in chunks for item in chunk.items[chunk.context_items :]]
    assert new == list(range(primed, total)), "each item is new exactly once, in order"
    delivered = list(range(min(primed, total)))
    for chunk in chunks:
        assert chunk.items[: chunk.context_items] == delivered[len(delivered) - chunk.context_items :]
        assert chunk.items == list(range(chunk.start_offset, chunk.start_offset + chunk.num_items))
        assert chunk.num_new == chunk.num_items - chunk.context_items
        delivered += chunk.items[chunk.context_items :]
    assert [chunk.is_final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.chunk_index for chunk in chunks] == list(range(len(chunks)))


@settings(max_examples=100, deadline=None)
@given(policies(), st.integers(0, 60), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=20))
def test_windows_before_the_last_do_not_depend_on_polling(policy_and_primed, total, polls):
    """But an adaptive policy's do: it reads the clock."""
    policy, _ = policy_and_primed
    if type(policy).__name__ == "AdaptiveChunkPolicy":
        return
    fresh = _copy(policy)
    lazy = [(chunk.items, chunk.context_items) for chunk in play(policy, total, polls) if chunk.num_new]
    eager = [(chunk.items, chunk.context_items) for chunk in play(fresh, total) if chunk.num_new]
    assert lazy == eager


def _copy(policy: ChunkPolicy) -> ChunkPolicy:
    copy = object.__new__(type(policy))
    copy.__dict__.update(policy.__dict__)
    return copy


@pytest.mark.parametrize("total", [0, 1, 2, 3, 4, 5, 6, 9, 12])
@pytest.mark.parametrize("polls", [None, []], ids=["each item", "at the end"])
def test_exactly_one_final_chunk_at_exact_multiples_too(total, polls):
    """A peer hung when a stream's length was an exact multiple of its chunk."""
    chunks = play(FixedChunkPolicy(3), total, polls)
    assert sum(chunk.is_final for chunk in chunks) == 1
    assert chunks[-1].is_final


def test_no_items_give_one_empty_final_chunk():
    (chunk,) = play(ScheduledLeftContextChunkPolicy((2, 4), 8, 4), 0)
    assert (chunk.items, chunk.chunk_index, chunk.start_offset, chunk.context_items) == ([], 0, 0, 0)
    assert chunk.is_final


def test_done_after_the_last_full_chunk_gives_an_empty_final_chunk():
    buffer = StreamBuffer(FixedChunkPolicy(2))
    buffer.put(0)
    buffer.put(1)
    assert not buffer.pop_chunk().is_final
    assert not buffer.has_chunk_ready()
    buffer.signal_done()
    final = buffer.pop_chunk()
    assert (final.items, final.start_offset, final.is_final) == ([], 2, True)


def test_after_the_final_chunk_nothing_is_ready():
    buffer = StreamBuffer(FixedChunkPolicy(2))
    buffer.signal_done()
    buffer.signal_done()
    assert buffer.pop_chunk().is_final
    assert buffer.finished
    assert not buffer.has_chunk_ready()
    with pytest.raises(RuntimeError, match="no chunk is ready"):
        buffer.pop_chunk()


def test_a_finished_stream_flushes_everything_at_once_in_sizes_of_the_policy():
    buffer = StreamBuffer(ScheduledLeftContextChunkPolicy((2, 4, 8, 15), 15))
    for item in range(40):
        buffer.put(item)
    assert buffer.pending == 40
    buffer.signal_done()
    chunks = drain(buffer)
    assert [chunk.num_new for chunk in chunks] == [2, 4, 8, 15, 11]
    assert buffer.pending == 0


def test_a_finished_stream_does_not_wait_for_the_ladder():
    buffer = StreamBuffer(ScheduledLeftContextChunkPolicy((2, 4, 8, 15), 15))
    for item in range(5):
        buffer.put(item)
    assert buffer.pop_chunk().num_new == 2
    assert not buffer.has_chunk_ready()
    buffer.signal_done()
    assert buffer.pop_chunk().is_final


def test_pending_counts_what_is_still_to_be_delivered():
    policy = ScheduledLeftContextChunkPolicy((), 4, 3)
    policy.prime(3)
    buffer = StreamBuffer(policy)
    for item in range(3):
        buffer.put(item)
    assert buffer.pending == 0
    for item in range(3, 9):
        buffer.put(item)
    assert buffer.pending == 6
    buffer.pop_chunk()
    assert buffer.pending == 2


def test_put_after_done_is_refused():
    buffer = StreamBuffer(FixedChunkPolicy(2))
    buffer.signal_done()
    with pytest.raises(RuntimeError, match="after signal_done"):
        buffer.put(0)


def test_pop_without_a_chunk_is_refused():
    buffer = StreamBuffer(FixedChunkPolicy(2))
    buffer.put(0)
    with pytest.raises(RuntimeError, match="no chunk is ready"):
        buffer.pop_chunk()


def test_rows_of_a_step_are_held_as_views_not_copies():
    step = np.arange(32).reshape(8, 4)
    buffer = StreamBuffer(LeftContextChunkPolicy(2, 1))
    for row in step:
        buffer.put(row)
    chunk = buffer.pop_chunk()
    assert all(np.shares_memory(row, step) for row in chunk.items)
    assert chunk.items[1] is buffer.pop_chunk().items[0]


def test_a_long_stream_holds_only_what_is_pending():
    buffer = StreamBuffer(ScheduledLeftContextChunkPolicy((), 15, 25))
    sizes = []
    for item in range(20_000):
        buffer.put(item)
        drain(buffer)
        sizes.append(sys.getsizeof(buffer._items))
    assert max(sizes) < 8 * 2000
    assert buffer.pending == 20_000 % 15


def test_a_popped_chunk_counts_as_sent():
    policy = FixedChunkPolicy(2)
    buffer = StreamBuffer(policy)
    for item in range(5):
        buffer.put(item)
    buffer.signal_done()
    drain(buffer)
    assert (policy.chunks_sent, policy.items_sent) == (3, 5)

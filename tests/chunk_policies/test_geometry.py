"""Which windows each policy makes: sizes, context and offsets."""

import pytest
from chunk_streams import geometry, new_sizes, play

from chunk_policies import (
    ChunkPolicy,
    FixedChunkPolicy,
    LeftContextChunkPolicy,
    RampChunkPolicy,
    ScheduledLeftContextChunkPolicy,
    SlidingWindowChunkPolicy,
    StreamBuffer,
)

POLLING = pytest.mark.parametrize(
    "polls", [None, [], [(3, None)] * 50], ids=["each item", "at the end", "threes"]
)


@POLLING
def test_scheduled_ramp_with_context_as_long_as_the_steady_chunk(polls):
    chunks = play(ScheduledLeftContextChunkPolicy((4, 8, 16), 25, 25), 120, polls)
    assert geometry(chunks) == [
        (4, 0, 0),
        (12, 4, 0),
        (28, 12, 0),
        (50, 25, 3),
        (50, 25, 28),
        (50, 25, 53),
        (42, 25, 78),
    ]


@POLLING
def test_scheduled_ramp_ends_with_its_context_when_the_last_window_was_full(polls):
    chunks = play(ScheduledLeftContextChunkPolicy((1, 3), 5, 2), 14, polls)
    assert geometry(chunks) == [(1, 0, 0), (4, 1, 0), (7, 2, 2), (7, 2, 7), (2, 2, 12)]


@POLLING
def test_fixed(polls):
    assert geometry(play(FixedChunkPolicy(3), 10, polls)) == [(3, 0, 0), (3, 0, 3), (3, 0, 6), (1, 0, 9)]


@POLLING
def test_sliding_window(polls):
    chunks = play(SlidingWindowChunkPolicy(4, 2), 10, polls)
    assert geometry(chunks) == [(4, 0, 0), (4, 2, 2), (4, 2, 4), (4, 2, 6), (2, 2, 8)]


@POLLING
def test_left_context(polls):
    assert geometry(play(LeftContextChunkPolicy(4, 1), 10, polls)) == [(4, 0, 0), (5, 1, 3), (3, 1, 7)]


def test_orpheus_snac_windows_of_four_frames_advance_by_one():
    chunks = play(SlidingWindowChunkPolicy(28, 7), 42)
    assert geometry(chunks) == [(28, 0, 0), (28, 21, 7), (28, 21, 14), (21, 21, 21)]


def test_ramp_grows_geometrically_to_its_cap():
    chunks = play(RampChunkPolicy(5, 10, growth=1.5, max_chunk=30), 150)
    assert geometry(chunks) == [
        (5, 0, 0),
        (10, 0, 5),
        (15, 0, 15),
        (22, 0, 30),
        (30, 0, 52),
        (30, 0, 82),
        (30, 0, 112),
        (8, 0, 142),
    ]


def test_ramp_without_growth_keeps_its_second_size():
    assert new_sizes(play(RampChunkPolicy(2, 6), 21)) == [2, 6, 6, 6, 1]


def test_ramp_does_not_overflow_on_an_endless_stream():
    policy = RampChunkPolicy(1, 2, growth=10.0)
    for _ in range(5000):
        policy.register_chunk(1)
    assert policy.window_size() == 2**53
    assert not policy.is_ready(10**9)


@pytest.mark.parametrize(
    ("policy", "primed", "expected"),
    [
        (ScheduledLeftContextChunkPolicy((2, 4), 6, 5), 3, [(5, 3, 0), (9, 5, 0), (11, 5, 4), (5, 5, 10)]),
        (LeftContextChunkPolicy(4, 2), 2, [(6, 2, 0), (6, 2, 4), (6, 2, 8), (2, 2, 12)]),
    ],
)
def test_primed_items_are_context_of_the_first_window_and_never_new(policy, primed, expected):
    policy.prime(primed)
    new = sum(window - context for window, context, _ in expected)
    chunks = play(policy, primed + new)
    assert geometry(chunks) == expected
    assert [item for chunk in chunks for item in chunk.items[chunk.context_items :]] == list(
        range(primed, primed + new)
    )


def test_priming_longer_than_the_stream_leaves_only_context():
    policy = ScheduledLeftContextChunkPolicy((2,), 6, 5)
    policy.prime(5)
    (chunk,) = play(policy, 3)
    assert (chunk.items, chunk.context_items, chunk.num_new, chunk.is_final) == ([0, 1, 2], 3, 0, True)


@pytest.mark.parametrize(
    "policy",
    [FixedChunkPolicy(3), RampChunkPolicy(1, 2), SlidingWindowChunkPolicy(4, 2)],
    ids=lambda p: type(p).__name__,
)
def test_policies_without_context_cannot_be_primed(policy):
    policy.prime(0)
    with pytest.raises(ValueError, match="keeps no context"):
        policy.prime(1)


def test_priming_is_bounded_by_the_context_and_comes_before_the_first_chunk():
    policy = ScheduledLeftContextChunkPolicy((), 4, 3)
    with pytest.raises(ValueError, match="left_context = 3"):
        policy.prime(4)
    with pytest.raises(ValueError, match="at least 0"):
        policy.prime(-1)
    policy.register_chunk(4)
    with pytest.raises(ValueError, match="before the first"):
        policy.prime(1)


class TestSurface:
    """What a caller may ask a policy directly, as in M*'s class documentation."""

    def test_left_context_advances_by_less_at_first_so_that_the_overlap_stays(self):
        policy = LeftContextChunkPolicy(300, 25)
        assert not policy.is_ready(299)
        assert policy.is_ready(300)
        assert (policy.window_size(), policy.next_chunk_size(300)) == (300, 275)
        policy.register_chunk(300)
        assert not policy.is_ready(324)
        assert policy.is_ready(325)
        assert (policy.window_size(), policy.next_chunk_size(325)) == (325, 300)

    def test_sliding_window_consumes_its_stride(self):
        policy = SlidingWindowChunkPolicy(28, 7)
        assert not policy.is_ready(27)
        assert policy.is_ready(28)
        assert (policy.window_size(), policy.next_chunk_size(28)) == (28, 7)

    def test_observing_frames_changes_nothing_in_a_fixed_policy(self):
        policy = FixedChunkPolicy(3)
        policy.observe_frame(1.0)
        policy.observe_pause()
        assert policy.window_size() == 3

    def test_a_policy_is_abstract(self):
        with pytest.raises(TypeError):
            ChunkPolicy()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedChunkPolicy(0), "chunk_size = 0: must be a whole number of at least 1"),
        (lambda: FixedChunkPolicy(True), "chunk_size = True"),
        (lambda: FixedChunkPolicy(2.5), r"chunk_size = 2\.5"),  # type: ignore[arg-type]
        (lambda: FixedChunkPolicy(2, continue_after_done=frozenset()), "continue_after_done"),
        (lambda: FixedChunkPolicy(2, continue_after_done="talker"), "continue_after_done"),  # type: ignore[arg-type]
        (lambda: SlidingWindowChunkPolicy(4, 5), "stride = 5: must be at most window = 4"),
        (lambda: SlidingWindowChunkPolicy(4, 0), "stride = 0"),
        (lambda: LeftContextChunkPolicy(3, 4), "left_context = 4: must be at most chunk = 3"),
        (lambda: LeftContextChunkPolicy(3, -1), "left_context = -1"),
        (lambda: RampChunkPolicy(0, 2), "first_chunk = 0"),
        (lambda: RampChunkPolicy(1, 0), "chunk_size = 0"),
        (lambda: RampChunkPolicy(1, 2, growth=0.5), "growth = 0.5"),
        (lambda: RampChunkPolicy(1, 2, growth=float("inf")), "growth = inf"),
        (lambda: RampChunkPolicy(1, 4, max_chunk=3), "max_chunk = 3: must be a whole number of at least 4"),
        (lambda: ScheduledLeftContextChunkPolicy((4, 0), 8, 2), r"schedule\[1\] = 0"),
        (lambda: ScheduledLeftContextChunkPolicy((4,), 0, 2), "chunk = 0"),
        (lambda: ScheduledLeftContextChunkPolicy((4,), 8, -2), "left_context = -2"),
    ],
)
def test_bad_arguments_are_refused_by_name_value_and_limit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class TestContinueAfterProducerDone:
    """A consumer that runs on after its producer gets empty chunks and decides itself when to end."""

    def test_empty_chunks_keep_coming_and_none_is_final(self):
        buffer = StreamBuffer(FixedChunkPolicy(2, continue_after_done=True))
        for item in range(3):
            buffer.put(item)
        buffer.signal_done()
        chunks = [buffer.pop_chunk() for _ in range(6)]
        assert [chunk.items for chunk in chunks] == [[0, 1], [2], [], [], [], []]
        assert [chunk.chunk_index for chunk in chunks] == [0, 1, 2, 3, 4, 5]
        assert not any(chunk.is_final for chunk in chunks)
        assert buffer.has_chunk_ready()
        assert not buffer.finished

    def test_only_in_the_walks_named(self):
        policy = RampChunkPolicy(1, 2, continue_after_done={"decode"})
        assert policy.continue_after_producer_done()
        assert policy.continues_in("decode")
        assert not policy.continues_in("prefill")
        assert not policy.continues_in(None)
        buffer = StreamBuffer(policy)
        buffer.put(0)
        buffer.put(1)
        buffer.signal_done()
        assert buffer.pop_chunk("prefill").items == [0]
        assert buffer.pop_chunk("prefill").items == [1], "items are delivered in every walk"
        assert not buffer.has_chunk_ready("prefill")
        with pytest.raises(RuntimeError, match="no chunk is ready"):
            buffer.pop_chunk("prefill")
        assert buffer.pop_chunk("decode").items == []

    def test_before_the_producer_is_done_nothing_is_empty(self):
        buffer = StreamBuffer(FixedChunkPolicy(2, continue_after_done=True))
        assert not buffer.has_chunk_ready("decode")
        buffer.put(0)
        assert not buffer.has_chunk_ready("decode")

    def test_empty_chunks_do_not_move_a_ramp(self):
        policy = RampChunkPolicy(1, 2, continue_after_done=True, growth=2.0)
        buffer = StreamBuffer(policy)
        buffer.signal_done()
        for _ in range(5):
            buffer.pop_chunk()
        assert policy.window_size() == 1
        assert policy.chunks_sent == 0

    @pytest.mark.parametrize(
        "policy", [SlidingWindowChunkPolicy(4, 2), LeftContextChunkPolicy(4, 1), FixedChunkPolicy(2)]
    )
    def test_is_off_by_default(self, policy):
        assert not policy.continue_after_producer_done()
        assert not policy.continues_in("decode")

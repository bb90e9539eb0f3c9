"""The adaptive controller: what it may pick, when it climbs, and what must not fool it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_policies import (
    AdaptiveChunkPolicy,
    AdaptiveController,
    AdaptiveSettings,
    ChunkSchedule,
    StreamBuffer,
)
from chunk_policies.adaptive import EWMA_WEIGHT, MAX_REPEATS

LADDER = (1, 2, 4, 8, 15)
FRAME = 0.08


def controller(**values) -> AdaptiveController:
    return AdaptiveController(AdaptiveSettings(**{"ladder": LADDER, "frame_seconds": FRAME, **values}))


class Stream:
    """A stream on a machine that takes ``cost`` seconds a frame, driven as the orchestrator drives it."""

    def __init__(self, **settings):
        self.now = 0.0
        self.policy = AdaptiveChunkPolicy(
            AdaptiveSettings(**{"ladder": LADDER, "frame_seconds": FRAME, **settings}), clock=lambda: self.now
        )
        self.buffer: StreamBuffer[int] = StreamBuffer(self.policy)

    def produce(self, frames: int, cost: float, take: bool = True) -> None:
        for frame in range(frames):
            self.now += cost
            self.policy.observe_frame(self.now)
            self.buffer.put(frame)
            if take:
                self.take()

    def take(self) -> None:
        while self.buffer.has_chunk_ready():
            self.buffer.pop_chunk()

    @property
    def sizes(self) -> list[int]:
        return self.policy.controller.telemetry.sizes


@settings(max_examples=200, deadline=None)
@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(0, 0.4), st.integers(0, 8)), min_size=1, max_size=60),
    st.integers(0, 8),
    st.floats(0, 0.2),
)
def test_only_sizes_on_the_ladder_and_never_smaller_or_two_steps_at_once(ladder, events, first, margin):
    steps = tuple(sorted(ladder))
    under_test = controller(
        ladder=steps,
        first=first if first in steps else 0,
        safety_margin_seconds=margin,
        context_cost_seconds=0.01,
    )
    now = 0.0
    chosen = []
    for pause, frames in events:
        for _ in range(frames):
            now += pause
            under_test.frame_produced(now)
        chosen.append(under_test.target)
        under_test.chunk_sent(under_test.target, now)
    places = [steps.index(size) for size in chosen]
    assert all(0 <= after - before <= 1 for before, after in pairwise(places))


def test_a_fast_machine_climbs_a_step_a_chunk_as_soon_as_it_knows_its_speed():
    stream = Stream()
    stream.produce(60, cost=0.016)
    assert stream.sizes[:6] == [1, 1, 2, 4, 8, 15]
    assert stream.policy.controller.telemetry.total_gap == 0


def test_a_slow_machine_stays_small_until_the_buffer_allows_more():
    stream = Stream(ladder=(1, 2, 4, 8, 16, 25))
    stream.produce(90, cost=0.044)
    assert stream.sizes[:9] == [1, 1, 1, 2, 2, 4, 8, 8, 16]
    assert stream.policy.controller.telemetry.total_gap == 0


def test_the_growth_floor_does_not_wait_for_a_positive_buffer():
    """A floor that does spirals: small chunks, more codec calls, an emptier buffer, small chunks."""
    stream = Stream()
    stream.produce(80, cost=0.2)
    expected = [size for size in LADDER[:-1] for _ in range(MAX_REPEATS)]
    assert stream.sizes[: len(expected) + 1] == [*expected, LADDER[-1]]
    assert stream.policy.controller.telemetry.total_gap > 0


def test_the_largest_size_is_kept():
    stream = Stream()
    stream.produce(200, cost=0.01)
    stream.produce(100, cost=0.5)
    assert set(stream.sizes[6:]) == {15}


def test_the_safety_margin_and_the_context_cost_delay_the_climb():
    def third_size(**settings) -> int:
        stream = Stream(**settings)
        stream.produce(6, cost=0.03)
        return stream.sizes[2]

    assert third_size(safety_margin_seconds=0.05) == 2
    assert third_size(safety_margin_seconds=0.08) == 1
    assert third_size(safety_margin_seconds=0.05, context_cost_seconds=0.03) == 1


def test_frame_duration_is_a_parameter():
    quick, slow = Stream(frame_seconds=0.04), Stream(frame_seconds=0.16)
    quick.produce(30, cost=0.03)
    slow.produce(30, cost=0.03)
    assert quick.sizes[:4] == [1, 1, 1, 2]
    assert slow.sizes[:4] == [1, 1, 2, 4]


def test_the_first_chunk_can_be_given_even_off_the_ladder_of_the_rest():
    stream = Stream(ladder=(4, 8, 15), first=1)
    stream.produce(40, cost=0.016)
    assert stream.sizes[:4] == [1, 4, 8, 15]


def test_a_slow_client_does_not_look_like_slow_hardware():
    stream = Stream()
    for _ in range(40):
        stream.produce(2, cost=0.016, take=False)
        stream.now += 0.3  # responses are taken late; the next frame is late for that reason only
        stream.policy.observe_pause()
        stream.take()
    assert stream.policy.controller.frame_cost == pytest.approx(0.016)


def test_taking_chunks_late_does_not_touch_the_estimate():
    stream = Stream()
    stream.produce(50, cost=0.02, take=False)
    stream.take()
    assert stream.policy.controller.frame_cost == pytest.approx(0.02)
    assert stream.sizes[:5] == [1, 1, 2, 4, 8], "what is there already is sent in growing chunks"


def test_the_estimate_follows_the_machine():
    under_test = controller()
    assert under_test.frame_cost is None
    for now in (1.0, 1.02, 1.04, 1.14):
        under_test.frame_produced(now)
    assert under_test.frame_cost == pytest.approx(0.02 + EWMA_WEIGHT * 0.08)


def test_telemetry_estimates_the_gaps_of_a_player_that_pauses():
    under_test = controller(ladder=(1, 2))
    for now in (0.0, 0.1, 0.15, 0.5):
        under_test.chunk_sent(1, now)
    telemetry = under_test.telemetry
    assert telemetry.sizes == [1, 1, 1, 1]
    assert telemetry.gaps == pytest.approx([0.0, 0.02, 0.0, 0.24])
    assert telemetry.total_gap == pytest.approx(0.26)


def test_a_schedule_makes_adaptive_policies_from_its_keys():
    schedule = ChunkSchedule.from_mapping(
        {"codec_chunk_adaptive": True, "codec_chunk_min_frames": 2, "codec_chunk_safety_margin_ms": 80}
    )
    assert schedule.ladder == (2, 4, 8, 15), "without a ramp: doublings from the smallest chunk"
    now = [0.0]
    policy = schedule.policy(clock=lambda: now[0], frame_seconds=FRAME, windowed=False)
    assert isinstance(policy, AdaptiveChunkPolicy)
    assert policy.window_size() == 2


def test_min_frames_keeps_smaller_sizes_of_the_ladder_for_others():
    schedule = ChunkSchedule.from_mapping(
        {"codec_chunk_adaptive": True, "codec_chunk_ramp": "1,2,4,8,15", "codec_chunk_min_frames": 4}
    )
    assert schedule.policy(frame_seconds=FRAME).window_size() == 4
    assert schedule.ladder == (1, 2, 4, 8, 15)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ladder": ()}, "ladder"),
        ({"ladder": (4, 2)}, "ascending"),
        ({"ladder": (2, 2)}, "ascending"),
        ({"ladder": (0, 2)}, "ladder entry = 0"),
        ({"first": -1}, "first = -1"),
        ({"frame_seconds": 0.0}, "frame_seconds = 0.0"),
        ({"safety_margin_seconds": -0.1}, "safety_margin_seconds = -0.1"),
        ({"context_cost_seconds": float("nan")}, "context_cost_seconds = nan"),
    ],
)
def test_bad_settings_are_refused(values, problem):
    with pytest.raises(ValueError, match=problem):
        controller(**values)

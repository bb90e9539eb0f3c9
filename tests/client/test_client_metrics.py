"""Each definition of streaming quality against traces computed by hand.

All traces have 1000 samples a second, so 100 samples are 0.1 s of audio.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.metrics import (
    Distribution,
    Rate,
    audible_ttfp_seconds,
    deficits_seconds,
    gaps_seconds,
    is_continuous,
    is_on_time,
    longest_stall_seconds,
    measure,
    rtf,
    stalls_seconds,
    stalls_within,
    summarise,
    total_stall_seconds,
    ttfp_seconds,
    underrun_seconds,
)
from client.trace import Arrival, Trace


def trace(*arrivals: tuple[float, int], error: str | None = None, audible: int | None = 0) -> Trace:
    return Trace(
        stream_id="s",
        started_at=0.0,
        arrivals=tuple(Arrival(seconds, samples) for seconds, samples in arrivals),
        sample_rate=1000 if arrivals else None,
        channels=1 if arrivals else None,
        first_audible_sample=audible if arrivals else None,
        end_seconds=arrivals[-1][0] + 0.01 if arrivals else 0.5,
        finish_reason="stop" if arrivals else None,
        error_code=error,
    )


# Two stalls of 0.2 s: the audio is 0.1 s a chunk, the chunks come 0.3 s apart.
TWO_STALLS = trace((1.0, 100), (1.3, 100), (1.6, 100))
# One late chunk, then a burst that fills the buffer again, then another late one.
LATE_AND_BURST = trace((1.0, 100), (1.25, 300), (1.3, 300), (2.0, 100))
SINGLE = trace((0.4, 500))
NO_AUDIO = trace()


class TestANeverPausingPlayer:
    def test_deficits_are_time_since_the_first_chunk_minus_audio_before(self) -> None:
        assert deficits_seconds(TWO_STALLS) == pytest.approx([0.0, 0.2, 0.4])

    def test_negative_deficits_are_audio_in_hand(self) -> None:
        # Before the chunks: 0, 0.1, 0.4, 0.7 s of audio; 0, 0.25, 0.3, 1.0 s have passed.
        assert deficits_seconds(LATE_AND_BURST) == pytest.approx([0.0, 0.15, -0.1, 0.3])

    def test_underrun_is_the_largest_deficit(self) -> None:
        assert underrun_seconds(TWO_STALLS) == pytest.approx(0.4)
        assert underrun_seconds(LATE_AND_BURST) == pytest.approx(0.3)

    def test_a_stream_that_is_always_ahead_has_no_underrun(self) -> None:
        assert underrun_seconds(trace((0.5, 200), (0.6, 200), (0.7, 200))) == 0.0

    @pytest.mark.parametrize(("arrives", "continuous"), [(1.2, True), (1.199, True), (1.201, False)])
    def test_continuous_up_to_exactly_100_ms(self, arrives: float, continuous: bool) -> None:
        assert is_continuous(trace((1.0, 100), (arrives, 100))) is continuous

    def test_a_single_chunk_counts_as_continuous(self) -> None:
        assert is_continuous(SINGLE) is True
        assert underrun_seconds(SINGLE) == 0.0

    def test_no_audio_is_neither(self) -> None:
        assert is_continuous(NO_AUDIO) is None
        assert underrun_seconds(NO_AUDIO) is None


class TestBPausingPlayer:
    def test_each_stall_stands_alone(self) -> None:
        assert stalls_seconds(TWO_STALLS) == pytest.approx([0.2, 0.2])
        assert longest_stall_seconds(TWO_STALLS) == pytest.approx(0.2)

    def test_a_late_chunk_moves_the_player_so_the_next_is_less_late(self) -> None:
        # Plays 1.0-1.1, dry until 1.25, then 0.6 s of audio until 1.85, dry until 2.0.
        assert stalls_seconds(LATE_AND_BURST) == pytest.approx([0.15, 0.0, 0.15])
        assert longest_stall_seconds(LATE_AND_BURST) == pytest.approx(0.15)

    @pytest.mark.parametrize(
        ("stall", "c50", "c100", "c200"),
        [
            (0.05, True, True, True),
            (0.06, False, True, True),
            (0.1, False, True, True),
            (0.2, False, False, True),
            (0.21, False, False, False),
        ],
    )
    def test_c50_c100_c200(self, stall: float, c50: bool, c100: bool, c200: bool) -> None:
        metrics = measure(trace((1.0, 100), (1.1 + stall, 100)))
        assert (metrics.c50, metrics.c100, metrics.c200) == (c50, c100, c200)

    def test_a_single_chunk_is_left_out(self) -> None:
        assert longest_stall_seconds(SINGLE) is None
        assert stalls_within(SINGLE, 0.05) is None


class TestCTotalOfStalls:
    def test_adds_up_all_stalls(self) -> None:
        assert total_stall_seconds(TWO_STALLS) == pytest.approx(0.4)
        assert total_stall_seconds(LATE_AND_BURST) == pytest.approx(0.3)

    def test_ignores_stalls_up_to_5_ms(self) -> None:
        jitter = trace((1.0, 100), (1.105, 100), (1.211, 100))
        # 5 ms late: ignored. The player then runs until 1.205, so the third is 6 ms late: counted.
        assert stalls_seconds(jitter) == pytest.approx([0.005, 0.006])
        assert total_stall_seconds(jitter) == pytest.approx(0.006)

    def test_a_single_chunk_has_none(self) -> None:
        assert total_stall_seconds(SINGLE) == 0.0
        assert total_stall_seconds(NO_AUDIO) is None


class TestDOnTime:
    def test_every_chunk_before_its_audio_is_due(self) -> None:
        assert is_on_time(trace((1.0, 100), (1.09, 100), (1.19, 100))) is True

    def test_one_late_chunk_is_enough(self) -> None:
        assert is_on_time(trace((1.0, 100), (1.09, 100), (1.21, 500), (1.3, 100))) is False

    def test_in_the_very_moment_is_late(self) -> None:
        assert is_on_time(trace((1.0, 100), (1.1, 100))) is False

    def test_a_single_chunk_is_left_out(self) -> None:
        assert is_on_time(SINGLE) is None


class TestTimes:
    def test_ttfp_is_the_first_arrival(self) -> None:
        assert ttfp_seconds(TWO_STALLS) == 1.0
        assert ttfp_seconds(NO_AUDIO) is None

    def test_rtf_is_last_arrival_over_audio(self) -> None:
        assert rtf(TWO_STALLS) == pytest.approx(1.6 / 0.3)
        assert rtf(SINGLE) == pytest.approx(0.8)
        assert rtf(NO_AUDIO) is None

    def test_gaps_are_between_arrivals(self) -> None:
        assert gaps_seconds(LATE_AND_BURST) == pytest.approx([0.25, 0.05, 0.7])
        assert gaps_seconds(SINGLE) == []

    @pytest.mark.parametrize(
        ("sample", "heard"),
        [
            (0, 1.0),  # the first sample of the stream
            (50, 1.05),  # within the first chunk
            (100, 1.3),  # the second chunk was late: it plays when it arrives
            (250, 1.65),
        ],
    )
    def test_audible_ttfp_is_when_the_sample_is_played(self, sample: int, heard: float) -> None:
        assert audible_ttfp_seconds(replace(TWO_STALLS, first_audible_sample=sample)) == pytest.approx(heard)

    def test_audible_ttfp_in_a_chunk_that_came_early_waits_for_the_audio_before_it(self) -> None:
        early = trace((1.0, 100), (1.01, 100), audible=110)
        assert audible_ttfp_seconds(early) == pytest.approx(1.11)

    def test_silence_is_never_heard(self) -> None:
        assert audible_ttfp_seconds(replace(TWO_STALLS, first_audible_sample=None)) is None

    def test_an_audible_sample_beyond_the_audio_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="not within the 300 samples"):
            audible_ttfp_seconds(replace(TWO_STALLS, first_audible_sample=300))


class TestMeasure:
    def test_all_figures_of_one_request(self) -> None:
        metrics = measure(TWO_STALLS)
        assert metrics.succeeded
        assert metrics.chunks == 3
        assert metrics.audio_seconds == pytest.approx(0.3)
        assert metrics.end_seconds == pytest.approx(1.61)
        assert (metrics.continuous, metrics.c200, metrics.on_time) == (False, True, False)

    def test_a_failed_stream_shows_what_arrived(self) -> None:
        metrics = measure(trace((1.0, 100), (1.05, 100), error="INTERNAL"))
        assert not metrics.succeeded
        assert (metrics.error_code, metrics.chunks, metrics.continuous) == ("INTERNAL", 2, True)

    def test_a_running_stream_has_not_succeeded(self) -> None:
        assert not measure(replace(TWO_STALLS, end_seconds=None)).succeeded

    @pytest.mark.parametrize("example", [TWO_STALLS, SINGLE, NO_AUDIO])
    def test_json_ready(self, example: Trace) -> None:
        assert json.loads(json.dumps(measure(example).to_dict()))["chunks"] == len(example.arrivals)
        assert Trace.from_dict(json.loads(json.dumps(example.to_dict()))) == example


class TestSummary:
    GOOD = trace((0.2, 100), (0.25, 100))
    STREAMS = tuple(
        measure(each)
        for each in (GOOD, TWO_STALLS, SINGLE, NO_AUDIO, trace((9.0, 100), (99.0, 1), error="FULL"))
    )

    def test_success_stands_beside_quality(self) -> None:
        summary = summarise(self.STREAMS)
        assert summary.requests == 5
        assert (summary.success.hits, summary.success.total) == (4, 5)
        assert summary.errors == {"FULL": 1}

    def test_failed_streams_enter_no_average(self) -> None:
        summary = summarise(self.STREAMS)
        assert summary.ttfp_seconds.count == 3
        assert summary.ttfp_seconds.max == 1.0
        assert summary.audio_seconds == pytest.approx(0.2 + 0.3 + 0.5)

    def test_each_rate_counts_where_it_applies(self) -> None:
        summary = summarise(self.STREAMS)
        # A: GOOD and SINGLE of three with audio. B and D: GOOD of the two with two chunks or more.
        assert (summary.continuity.hits, summary.continuity.total) == (2, 3)
        assert (summary.c50.hits, summary.c50.total) == (1, 2)
        assert (summary.c200.hits, summary.c200.total) == (2, 2)
        assert (summary.on_time.hits, summary.on_time.total) == (1, 2)
        assert summary.single_chunk == 1

    def test_gaps_are_pooled(self) -> None:
        gaps = summarise(self.STREAMS).gaps_seconds
        assert gaps.count == 3
        assert gaps.max == pytest.approx(0.3)

    def test_an_unfinished_stream_is_named(self) -> None:
        assert summarise([measure(replace(self.GOOD, end_seconds=None))]).errors == {"UNFINISHED": 1}

    def test_nothing_at_all(self) -> None:
        summary = summarise([])
        assert summary.success.value is None
        assert summary.ttfp_seconds == Distribution(count=0)

    def test_json_ready(self) -> None:
        decoded = json.loads(json.dumps(summarise(self.STREAMS).to_dict()))
        assert decoded["continuity"]["value"] == pytest.approx(2 / 3)

    def test_percentiles_are_interpolated(self) -> None:
        values = Distribution.of([*range(101), None])
        assert (values.count, values.p50, values.p90, values.p95, values.p99) == (101, 50, 90, 95, 99)
        assert Distribution.of([0.0, 1.0]).p95 == pytest.approx(0.95)

    def test_wilson_interval(self) -> None:
        # 27 of 40, the published 67.5 %: 52.0 to 79.9 % (standard tables).
        low, high = Rate(27, 40).interval or (0, 0)
        assert (low, high) == (pytest.approx(0.520, abs=5e-4), pytest.approx(0.799, abs=5e-4))
        assert Rate(0, 10).interval == (0.0, pytest.approx(0.278, abs=5e-4))
        assert Rate(0, 0).interval is None


arrivals = st.lists(
    st.tuples(st.integers(0, 400).map(lambda ms: ms / 1000), st.integers(1, 500)), min_size=2, max_size=12
)


@given(arrivals)
def test_the_definitions_order_each_other(gaps: list[tuple[float, int]]) -> None:
    clock, points = 0.0, []
    for gap, samples in gaps:
        clock += gap
        points.append((clock, samples))
    stream = trace(*points)
    underrun = underrun_seconds(stream)
    stalls = stalls_seconds(stream)
    assert underrun is not None
    # The pausing player stalls in total exactly as much as the other one would have had to buffer.
    assert underrun == pytest.approx(math.fsum(stalls), abs=1e-9)
    assert max(stalls) <= underrun + 1e-9
    if is_on_time(stream):
        assert underrun == 0.0
    if stalls_within(stream, 0.05):
        assert stalls_within(stream, 0.2)

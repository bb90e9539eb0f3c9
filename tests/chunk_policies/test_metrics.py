"""Definitions A to D of streaming quality, against traces worked out by hand."""

import math

import pytest

from chunk_policies.metrics import percentile, stream_quality, summarise

# Packets of 0.1 s, 0.3 s, 0.3 s and 0.3 s of audio after a request at 10.0; a player that starts with the
# first packet at 10.5 needs the second at 10.6, the third at 10.9 and the fourth at 11.2.
LATE_TWICE = [(10.5, 0.1), (10.75, 0.3), (10.89, 0.3), (11.45, 0.3)]


def test_a_stream_that_is_late_twice():
    quality = stream_quality(10.0, LATE_TWICE)
    assert quality.ttfp == pytest.approx(0.5)
    assert quality.audio == pytest.approx(1.0)
    assert quality.rtf == pytest.approx(1.45)
    assert quality.rtf_after_first == pytest.approx(0.95)
    assert quality.chunks == 4
    assert quality.underrun == pytest.approx(0.25), "A: 11.45 instead of 11.2"
    # B, C: a player that pauses is moved on by its first pause of 0.15 s, and then waits 0.1 s more.
    assert quality.longest_pause == pytest.approx(0.15)
    assert quality.silence == pytest.approx(0.25)
    assert quality.late_chunks == 2
    assert quality.longest_interval == pytest.approx(0.56)


def test_two_equal_stalls_are_one_pause_for_b_and_two_for_a_and_c():
    quality = stream_quality(0.0, [(0.0, 0.1), (0.3, 0.1), (0.6, 0.1)])
    assert quality.underrun == pytest.approx(0.4)
    assert quality.longest_pause == pytest.approx(0.2)
    assert quality.silence == pytest.approx(0.4)


def test_gaps_of_up_to_5_ms_are_not_silence():
    quality = stream_quality(0.0, [(0.0, 0.1), (0.104, 0.1), (0.215, 0.1)])
    assert quality.longest_pause == pytest.approx(0.011)
    assert quality.silence == pytest.approx(0.011)
    assert quality.late_chunks == 2


def test_a_stream_that_is_never_late():
    quality = stream_quality(0.0, [(1.0, 0.5), (1.4, 0.5), (1.8, 0.5)])
    assert (quality.underrun, quality.longest_pause, quality.silence, quality.late_chunks) == (0, 0, 0, 0)


def test_one_packet_is_continuous_by_a_and_left_out_of_b_and_d():
    single = stream_quality(0.0, [(1.0, 2.0)])
    assert (single.underrun, single.rtf, single.rtf_after_first) == (0.0, 0.5, 0.0)
    alone = summarise([single])
    assert alone.continuous == 1.0
    assert math.isnan(alone.c50)
    assert math.isnan(alone.on_time)
    both = summarise([single, stream_quality(10.0, LATE_TWICE)])
    assert (both.continuous, both.c50, both.c100, both.c200, both.on_time) == (0.5, 0.0, 0.0, 1.0, 0.0)


def test_no_packet_has_no_quality():
    with pytest.raises(ValueError, match="count it as failed"):
        stream_quality(0.0, [])
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise([])


def test_summary_takes_means_shares_and_extremes():
    fine = stream_quality(0.0, [(0.2, 1.0), (0.4, 1.0)])
    summary = summarise([fine, stream_quality(10.0, LATE_TWICE)])
    assert summary.streams == 2
    assert summary.ttfp == pytest.approx(0.35)
    assert summary.ttfp_p95 == pytest.approx(0.5)
    assert summary.underrun == pytest.approx(0.125)
    assert summary.underrun_max == pytest.approx(0.25)
    assert summary.interval_p99 == pytest.approx(0.56)
    assert summary.chunks == 3


def test_percentile_is_the_nearest_rank():
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 99) == 4.0
    assert percentile([3.0], 1) == 3.0

"""From traces to figures: medians over rounds, failed requests, faults of the audio."""

import csv
import json

import pytest

from bench.arrivals import ClosedLoop
from bench.load import Outcome, Round
from bench.plots import buffer_curve, plot_buffers, plot_loads, worst
from bench.processes import Usage, cpu_between
from bench.rounds import Point, RoundReport, rtf_after_first
from bench.table import write_csv
from client.metrics import measure
from client.trace import Arrival, Trace


def trace(*arrivals: tuple[float, float], error: str | None = None) -> Trace:
    """arrivals: (seconds, seconds of audio) at 1000 Hz."""
    return Trace(
        stream_id="s",
        started_at=0.0,
        arrivals=tuple(Arrival(at, round(1000 * audio)) for at, audio in arrivals),
        sample_rate=1000,
        channels=1,
        first_audible_sample=0 if arrivals else None,
        end_seconds=arrivals[-1][0] if arrivals else 0.1,
        finish_reason=None if error else "stop",
        error_code=error,
    )


class Faulty:
    def __init__(self, fault):
        self.fault = fault


def outcome(t: Trace, fault: str | None = None) -> Outcome:
    return Outcome(0.0, t, measure(t), Faulty(fault))


def report(*traces: Trace, wall: float = 2.0, cpu: float = 0.5) -> RoundReport:
    return RoundReport.of(Round(ClosedLoop(8), tuple(map(outcome, traces)), wall, cpu), {"talker": 1.0})


SMOOTH = trace((0.1, 0.5), (0.3, 0.5), (0.6, 1.0))
LATE = trace((0.2, 0.1), (0.5, 0.1), (0.6, 1.0))  # the second chunk is 200 ms late


def test_a_round_in_figures():
    figures = report(SMOOTH, LATE).figures()
    assert figures["success"] == 1.0
    assert figures["ttfp_p50"] == pytest.approx(0.15)
    assert figures["continuity"] == 0.5
    assert figures["underrun_mean"] == pytest.approx(0.1)
    assert figures["audio_per_second"] == pytest.approx((2.0 + 1.2) / 2.0)
    assert figures["requests_per_second"] == 1.0
    assert figures["client_cpu"] == 0.25
    assert figures["server_cpu"] == 0.5


def test_rtf_after_the_first_packet_leaves_the_wait_for_it_out():
    assert rtf_after_first(SMOOTH) == pytest.approx(0.5 / 2.0)
    assert rtf_after_first(trace()) is None


def test_a_failed_request_lowers_success_and_nothing_else():
    figures = report(SMOOTH, trace((0.9, 0.1), (5.0, 0.1), error="INTERNAL")).figures()
    assert figures["success"] == 0.5
    assert figures["continuity"] == 1.0
    assert figures["ttfp_mean"] == pytest.approx(0.1)


def test_a_point_reports_medians_spans_and_the_discarded_round():
    rounds = (report(SMOOTH), report(LATE), report(SMOOTH, LATE))
    point = Point("C8", ClosedLoop(8), rounds, cold=report(LATE))
    assert point.median()["continuity"] == 0.5
    assert point.span("continuity") == (0.0, 1.0)
    assert (point.continuity().hits, point.continuity().total) == (2, 4)
    document = json.loads(json.dumps(point.to_dict()))
    assert document["cold_round"]["figures"]["continuity"] == 0.0
    assert document["load"] == {"concurrency": 8}


def test_figures_that_do_not_exist_in_any_round_are_none():
    point = Point("C1", ClosedLoop(1), (report(trace((0.1, 1.0))),))
    assert point.median()["c50"] is None  # one chunk cannot stall
    assert point.span("c50") is None


def test_faults_and_errors_are_collected():
    done = Round(ClosedLoop(1), (outcome(SMOOTH, "sample 3 came where 2 was due"), outcome(SMOOTH)), 1.0, 0.1)
    failed = Round(ClosedLoop(1), (outcome(trace(error="FULL")),), 1.0, 0.1)
    point = Point("C1", ClosedLoop(1), (RoundReport.of(done), RoundReport.of(failed)))
    assert point.faults == ("sample 3 came where 2 was due",)
    assert point.errors() == {"FULL": 1}


def test_csv_has_a_row_a_round_and_one_for_the_median(tmp_path):
    point = Point("C8", ClosedLoop(8), (report(SMOOTH), report(LATE)))
    write_csv(tmp_path / "a.csv", [point])
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "median"]
    assert float(rows[2]["continuity"]) == 0.5


def test_the_buffer_over_time_of_the_worst_stream(tmp_path):
    assert worst([SMOOTH, LATE, trace()]) is LATE
    times, levels = buffer_curve(LATE)
    assert times == pytest.approx([0.0, 0.0, 0.3, 0.3, 0.4, 0.4])
    assert levels == pytest.approx([0.0, 0.1, -0.2, -0.1, -0.2, 0.8])
    plot_buffers(tmp_path / "buffers.png", {"C8": LATE}, "title")
    plot_loads(tmp_path / "loads.png", [Point("C8", ClosedLoop(8), (report(SMOOTH),))], "title")
    assert (tmp_path / "buffers.png").stat().st_size > 0
    assert (tmp_path / "loads.png").stat().st_size > 0


def test_cpu_time_of_a_process_that_was_restarted_counts_from_its_start():
    before = {"talker": Usage(10.0, 50.0, 3), "codec": Usage(4.0, 50.0, 3)}
    after = {"talker": Usage(12.5, 50.0, 3), "codec": Usage(0.5, 50.0, 3), "new": Usage(1.0, 1.0, 1)}
    assert cpu_between(before, after) == {"talker": 2.5, "codec": 0.5, "new": 1.0}

"""The quick form of ./tritone bench soak."""

from bench.soak import SoakPlan
from tests.e2e.soaking import soak_without_fault


def test_everything_at_once_loses_no_sample(server, speech):
    """Streams of all lengths, text in parts, cancels, drops, HTTP and bad requests side by side."""
    report = soak_without_fault(server, speech, SoakPlan(160, 32))
    complete = [one for one in report.ended if one.kind == "speak"]
    assert len(complete) > 50
    assert {one.how for one in complete} <= {"stop", "FULL"}
    assert sum(one.samples for one in report.ended) > 1_000_000

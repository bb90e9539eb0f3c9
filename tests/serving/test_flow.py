"""The window between a stream and its client."""

from hypothesis import given
from hypothesis import strategies as st

from backends.serving.flow import FlowWindow


def test_a_stream_stands_when_more_than_a_window_is_not_acknowledged():
    flow = FlowWindow(2.0)
    assert not flow.blocked(sent=2.0, now=0.0)
    assert flow.blocked(sent=2.1, now=1.0)


def test_an_acknowledgement_lets_it_go_on():
    flow = FlowWindow(2.0)
    assert flow.blocked(sent=3.0, now=0.0)
    flow.acknowledge(1.0, sent=3.0, now=1.0)
    assert not flow.blocked(sent=3.0, now=1.0)
    assert flow.stalled(now=9.0) == 0.0


def test_only_the_time_without_news_while_it_stands_counts_as_stalled():
    flow = FlowWindow(2.0)
    assert flow.stalled(now=5.0) == 0.0
    assert flow.blocked(sent=4.0, now=5.0)
    assert flow.stalled(now=8.0) == 3.0
    flow.acknowledge(1.0, sent=4.0, now=8.0)  # not enough to go on, but a sign of life
    assert flow.blocked(sent=4.0, now=8.0)
    assert flow.stalled(now=9.0) == 1.0


def test_an_old_or_repeated_acknowledgement_is_no_sign_of_life():
    flow = FlowWindow(2.0)
    flow.acknowledge(1.0, sent=4.0, now=0.0)
    assert flow.blocked(sent=4.0, now=1.0)
    for position in (1.0, 0.5):
        flow.acknowledge(position, sent=4.0, now=5.0)
    assert flow.taken == 1.0
    assert flow.stalled(now=6.0) == 5.0


def test_nobody_can_take_what_was_not_sent():
    flow = FlowWindow(2.0)
    flow.acknowledge(1e9, sent=1.0, now=0.0)
    assert flow.blocked(sent=3.1, now=0.0)


@given(st.floats(1.0, 60.0), st.lists(st.floats(0.05, 1.2), min_size=1, max_size=50))
def test_a_client_that_takes_all_and_acknowledges_every_quarter_window_is_never_stopped(window, chunks):
    flow = FlowWindow(window)
    sent = acknowledged = 0.0
    for seconds in chunks:
        assert not flow.blocked(sent, now=0.0)
        sent += seconds
        if sent - acknowledged >= window / 4:
            acknowledged = sent
            flow.acknowledge(acknowledged, sent, now=0.0)
    assert not flow.blocked(sent, now=0.0)

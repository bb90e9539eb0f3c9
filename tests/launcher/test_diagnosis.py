"""What an observation means. Nothing is restarted for one odd answer, and nothing dead is waited for."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.diagnosis import HEALTHY, Action, Backoff, Diagnosis
from launcher.probe import ModelDeadError, ProbeError, Pulse, SilentError, UnreachableError

BOTH = {"talker", "codec"}


def pulse(codec_alive=True):
    return Pulse(active=0, queued=0, draining=False, codec_alive=codec_alive, details={})


def actions(*outcomes, silent=False):
    diagnosis = Diagnosis()
    return [diagnosis.pinged(outcome, silent).action for outcome in outcomes]


def test_a_process_that_is_gone_is_seen_without_asking():
    diagnosis = Diagnosis()
    assert diagnosis.processes(BOTH) is HEALTHY
    assert diagnosis.processes({"talker"}).action is Action.RELOAD_CODEC
    assert diagnosis.processes({"codec"}).action is Action.RELOAD_TALKER


def test_a_pulse_is_healthy():
    assert actions(pulse(), pulse()) == [Action.NONE] * 2


def test_a_dead_model_is_believed_at_once():
    assert actions(ModelDeadError("Stub process 'talker_0_0' is not healthy."))[0] is Action.RELOAD_TALKER


def test_the_codec_is_reloaded_if_the_talker_misses_it_twice_in_a_row():
    dead = pulse(codec_alive=False)
    assert actions(dead, dead) == [Action.NONE, Action.RELOAD_CODEC]
    assert actions(dead, pulse(), dead) == [Action.NONE] * 3


def test_silence_means_stuck_sooner_if_the_loop_does_not_move_either():
    silent = SilentError("no answer")
    assert actions(silent, silent) == [Action.NONE, Action.RELOAD_TALKER]
    assert actions(silent, silent=True) == [Action.RELOAD_TALKER]
    assert actions(silent, pulse(), silent) == [Action.NONE] * 3


def test_a_server_that_nobody_reaches_is_restarted():
    gone = UnreachableError("refused")
    assert actions(gone, gone, gone) == [Action.NONE, Action.NONE, Action.RESTART]


def test_strange_answers_lead_to_a_reload_in_the_end():
    strange = ProbeError("talker answered op=ping with None")
    assert actions(strange, strange, strange)[-1] is Action.RELOAD_TALKER


def test_a_word_that_fails_twice_in_a_row_restarts_the_server():
    diagnosis = Diagnosis()
    failure = ProbeError("no audio")
    assert diagnosis.spoke(failure).action is Action.NONE
    assert diagnosis.spoke(None) is HEALTHY
    assert diagnosis.spoke(failure).action is Action.NONE
    verdict = diagnosis.spoke(failure)
    assert verdict.action is Action.RESTART
    assert "no audio" in verdict.reason


def test_the_first_failure_waits_for_nothing_the_next_ones_ever_longer():
    backoff = Backoff(first=0.5, longest=4.0)
    assert [backoff.failed(float(n)) for n in range(7)] == [0.0, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_counting_starts_anew_after_good_health_not_after_a_long_recovery():
    backoff = Backoff(first=0.5, quiet=30.0)
    backoff.failed(0.0)
    backoff.recovered(100.0)
    assert backoff.failed(110.0) == 0.5
    backoff.recovered(120.0)
    assert backoff.failed(151.0) == 0.0


@given(st.lists(st.floats(0.0, 200.0), max_size=30))
def test_no_delay_exceeds_the_longest(gaps):
    backoff, now = Backoff(), 0.0
    for gap in gaps:
        now += gap
        assert 0.0 <= backoff.failed(now) <= backoff.longest

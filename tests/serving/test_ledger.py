"""The ledger between the two model processes."""

import multiprocessing
import os
import signal

import pytest

from backends.serving.ledger import MESSAGE_BYTES, ROWS, Ledger, Outcome


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def test_each_side_sees_what_the_other_wrote(path):
    talker, codec = Ledger(path, "talker"), Ledger(path, "codec")
    talker.open_row(3, generation=70)
    talker.sent[3] = 5
    codec.set_decoded(3, 70, 2)
    assert codec.is_open(3, 70) and not codec.is_open(3, 71)
    assert talker.in_flight(3, 70) == 3
    codec.verdict[3] = -70
    assert talker.verdict[3] == -70


def test_answers_of_an_earlier_stream_in_the_row_do_not_count(path):
    talker, codec = Ledger(path, "talker"), Ledger(path, "codec")
    codec.set_decoded(0, 8, 4)
    talker.open_row(0, generation=9)
    talker.sent[0] = 1
    assert talker.in_flight(0, 9) == 1


@pytest.mark.parametrize(
    ("text", "read"),
    [("", ""), ("the codec failed", "the codec failed"), ("é" * MESSAGE_BYTES, "é" * (MESSAGE_BYTES // 2))],
)
def test_a_closed_row_says_why(path, text, read):
    talker, codec = Ledger(path, "talker"), Ledger(path, "codec")
    talker.open_row(ROWS - 1, generation=1)
    talker.close_row(ROWS - 1, Outcome.FAILED, text)
    assert not codec.is_open(ROWS - 1, 1)
    assert Outcome(int(codec.outcome[ROWS - 1])) is Outcome.FAILED
    assert codec.message(ROWS - 1) == read


def test_only_streams_of_the_talker_are_known(path):
    talker, codec = Ledger(path, "talker"), Ledger(path, "codec")
    assert not codec.knows(0, 0) and not codec.knows(ROWS, 5) and not codec.knows(-1, 5)
    talker.open_row(0, generation=5)
    assert codec.knows(0, 5) and not codec.knows(0, 6) and not codec.knows(0, -5)
    talker.close_row(0, Outcome.COMPLETE)
    assert codec.knows(0, 5)


def test_a_retired_row_is_not_in_use(path):
    talker, codec = Ledger(path, "talker"), Ledger(path, "codec")
    talker.open_row(0, generation=5)
    assert not talker.seen(0, 5)
    codec.set_decoded(0, 5, 1)
    assert talker.seen(0, 5)
    codec.released[0] = 3
    talker.close_row(0, Outcome.COMPLETE)
    talker.retire_row(0)
    assert not codec.knows(0, 5)
    assert abs(int(talker.generation[0])) == int(codec.released[0])


def test_closing_twice_keeps_the_row_closed(path):
    talker = Ledger(path, "talker")
    talker.open_row(0, generation=4)
    talker.close_row(0, Outcome.COMPLETE)
    talker.close_row(0, Outcome.CANCELLED)
    assert int(talker.generation[0]) == -4


def test_a_side_that_has_not_started_is_not_alive(path):
    talker = Ledger(path, "talker")
    assert not talker.alive("codec")
    codec = Ledger(path, "codec")
    assert talker.alive("codec") and codec.alive("talker")
    codec.close()
    assert not talker.alive("codec")


def _hold_codec_side(path, ready):
    Ledger(path, "codec").beat()
    ready.set()
    signal.pause()


def test_a_killed_process_is_seen_at_once_even_as_a_zombie(path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_codec_side, args=(path, ready))
    process.start()
    assert ready.wait(30)
    talker = Ledger(path, "talker")
    assert talker.alive("codec")
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped
    assert not talker.alive("codec")
    process.join()


def test_epochs_count_starts_and_heartbeats_age(path):
    talker = Ledger(path, "talker")
    codec = Ledger(path, "codec")
    assert (talker.epoch("codec"), talker.silent_seconds("codec")) == (1, 0.0)
    codec.beat()
    first = talker.silent_seconds("codec")
    assert 0 < first < talker.silent_seconds("codec")
    codec.close()
    Ledger(path, "codec")
    assert talker.epoch("codec") == 2


def test_a_new_process_ends_the_streams_of_the_one_that_died(path):
    talker, codec = Ledger(path, "talker"), Ledger(path, "codec")
    talker.open_row(2, generation=5)
    talker.close()
    Ledger(path, "talker")
    assert not codec.is_open(2, 5)
    assert Outcome(int(codec.outcome[2])) is Outcome.FAILED
    assert codec.message(2).startswith("UNAVAILABLE: ")
    codec.close()
    assert int(Ledger(path, "codec").released[2]) == 5

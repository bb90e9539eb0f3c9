"""When a ledger row may serve the next stream: not before the codec has let go of the last one."""

from types import SimpleNamespace

import pytest

from backends.serving.ledger import ROWS, Ledger, Outcome
from backends.serving.sessions import LIMBO_SECONDS, Sessions
from chunk_policies import FixedChunkPolicy


@pytest.fixture
def talker(tmp_path):
    return Ledger(tmp_path / "ledger", "talker")


@pytest.fixture
def codec(tmp_path):
    return Ledger(tmp_path / "ledger", "codec")


def open_one(sessions):
    speech = SimpleNamespace(stream_id="", flow_window_seconds=None)
    return sessions.open(speech, None, object(), object(), FixedChunkPolicy(1), now=0.0)


def free_rows(sessions):
    return len(sessions._free_rows)


def test_a_row_is_free_again_once_the_codec_has_released_its_stream(talker, codec):
    sessions = Sessions(talker)
    session = open_one(sessions)
    codec.set_decoded(session.row, session.generation, 1)
    sessions.close(session, Outcome.COMPLETE, "", now=1.0)
    sessions.reclaim_rows(now=1.0)
    assert free_rows(sessions) == ROWS - 1
    codec.released[session.row] = session.generation
    sessions.reclaim_rows(now=1.1)
    assert free_rows(sessions) == ROWS


def test_a_codec_that_is_behind_keeps_the_row_however_long(talker, codec):
    sessions = Sessions(talker)
    late, early = open_one(sessions), open_one(sessions)
    for session in (late, early):
        codec.set_decoded(session.row, session.generation, 1)
        sessions.close(session, Outcome.COMPLETE, "", now=1.0)
    codec.released[early.row] = early.generation
    sessions.reclaim_rows(now=1_000.0)
    assert free_rows(sessions) == ROWS - 1
    assert codec.knows(late.row, late.generation)


def test_the_row_of_a_stream_that_the_codec_never_saw_is_taken_back(talker, codec):
    sessions = Sessions(talker)
    session = open_one(sessions)
    sessions.close(session, Outcome.CANCELLED, "", now=1.0)
    sessions.reclaim_rows(now=1.0 + LIMBO_SECONDS / 2)
    assert free_rows(sessions) == ROWS - 1
    sessions.reclaim_rows(now=1.1 + LIMBO_SECONDS)
    assert free_rows(sessions) == ROWS
    assert not codec.knows(session.row, session.generation)


def test_a_new_codec_has_no_streams_of_the_dead_one(talker, codec, tmp_path):
    sessions = Sessions(talker)
    session = open_one(sessions)
    codec.set_decoded(session.row, session.generation, 1)
    sessions.close(session, Outcome.FAILED, "UNAVAILABLE: the codec process died", now=1.0)
    codec.close()
    Ledger(tmp_path / "ledger", "codec")
    sessions.reclaim_rows(now=1.1)
    assert free_rows(sessions) == ROWS

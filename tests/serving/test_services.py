"""The two services together: every kind of family, every way in which a stream ends."""

import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.graphs import EagerCapture
from backends.talker import SamplingParameters, SpeechRequest
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import LimitConfig
from tests.fakes.families import FAMILIES
from tests.serving.wired import ENGINE, Wires

TEXTS = ["Say this.", "And a rather longer text than that.", "Short.", "One more, to fill the slots up."]


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


def whole(family, text, seed, frames):
    """The audio of the same codes, made by the talker alone and decoded at once, interleaved."""
    talker = family.talker()
    engine = TalkerEngine(talker, ENGINE, capture=EagerCapture())
    engine.warm_up(lambda done, total: None)
    sampling = SamplingParameters(extra={name: p.default for name, p in talker.parameters.items()})
    request = SpeechRequest(text, seed=seed, sampling=sampling, max_frames=frames)
    stream = SpeechStream(request, more_prompts=False, text_ended=True)
    stream.prompts.append(talker.build_prompt(request, text, True))
    engine.admit(stream)
    codes = []
    while stream.finish_reason is None:
        codes += list(engine.step().frames)
    return family.codec().whole(np.stack(codes)).T.reshape(-1)


def assert_in_order(call, spec):
    position = 0
    for index, (samples, info) in enumerate(call.chunks):
        assert info["index"] == index
        assert info["first_sample"] == position
        assert info["sample_rate"] == spec.sample_rate and info["channels"] == spec.channels
        position += len(samples) // spec.channels
    assert [info["finish_reason"] for _, info in call.chunks[:-1]] == [None] * (len(call.chunks) - 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_streamed_audio_is_the_whole_decode_for_every_kind_of_family(name, ledger):
    family = FAMILIES[name]
    # The trimmed decoder of "omni" makes no sample from a single frame.
    ramp = [2, 4] if name == "omni" else [1, 2, 4]
    with Wires(family, ledger, {"codec_chunk_ramp": ramp, "codec_chunk_frames": 4}) as wires:
        seconds = 30.5 * family.spec.seconds
        calls = [wires.speak(text, seed=i, max_seconds=seconds) for i, text in enumerate(TEXTS)]
        for i, (text, call) in enumerate(zip(TEXTS, calls, strict=True)):
            call.wait()
            assert call.error is None and call.finish_reason in ("stop", "length")
            assert_in_order(call, family.spec)
            expected = whole(family, text, i, 30)
            assert call.samples.shape == expected.shape
            np.testing.assert_allclose(call.samples, expected, atol=1e-5)


def test_a_stream_of_no_frames_has_a_clean_end(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        # Some seed draws the end at its first step.
        calls = (wires.speak("Nothing.", seed=seed, eagerness=5.0).wait() for seed in range(200))
        silent = next(call for call in calls if call.samples.size == 0)
        assert [info["finish_reason"] for _, info in silent.chunks] == ["stop"]


def test_a_budget_ends_a_stream_with_reason_length(ledger):
    family = FAMILIES["qwen"]
    with Wires(family, ledger) as wires:
        call = wires.speak("Too long.", seed=1, max_seconds=5 * family.spec.seconds, eagerness=-5.0).wait()
    assert call.finish_reason == "length"
    assert call.samples.size == 5 * family.spec.samples_per_frame


def test_a_talker_that_goes_bad_hurts_its_stream_only(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        good = [wires.speak(text, seed=i) for i, text in enumerate(TEXTS[:3])]
        bad = wires.speak("*")
        assert bad.wait().error == "INTERNAL: the talker failed for this stream"
        assert [call.wait().finish_reason for call in good] == ["stop"] * 3


def test_a_codec_that_fails_hurts_its_stream_only(ledger):
    family = FAMILIES["qwen"]
    with Wires(family, ledger) as wires:
        decode = wires.codec_engine.decode
        broken = []

        def failing(batch):
            results = decode(batch)
            for result in results:
                broken[:] = broken or [result.job.key]
                if result.job.key == broken[0] and result.job.index == 1:
                    result.error = RuntimeError("bad decode")
            return results

        wires.codec_engine.decode = failing
        calls = [wires.speak(text, seed=i, eagerness=-1.0) for i, text in enumerate(TEXTS)]
        ends = [call.wait().error or call.finish_reason for call in calls]
    assert ends.count("INTERNAL: the codec failed for this stream") == 1
    assert sum(end in ("stop", "length") for end in ends) == 3


def test_surplus_streams_are_refused_at_once_and_queued_ones_are_spoken(ledger):
    with Wires(FAMILIES["qwen"], ledger, limits=LimitConfig(max_seconds=0.5)) as wires:
        calls = [wires.speak("Everyone at once.", seed=i, eagerness=-2.0) for i in range(20)]
        ends = [call.wait().error or call.finish_reason for call in calls]
        full = [end for end in ends if end.startswith("FULL: the server is full: all 4 slots and 4 places")]
        assert 0 < len(full) <= 12
        assert len(full) + sum(end in ("stop", "length") for end in ends) == 20
        assert wires.speak("Room again.", seed=1).wait().error is None


def test_a_new_stream_is_as_urgent_as_its_arrival_not_more(ledger):
    """Else the next piece of a long text starves while new streams keep coming."""
    admitted = []
    with Wires(FAMILIES["qwen"], ledger) as wires:
        admit = wires.talker_engine.admit

        def noting(stream):
            admitted.append((stream.deadline, time.monotonic()))
            admit(stream)

        wires.talker_engine.admit = noting
        began = time.monotonic()
        for seed in range(3):
            wires.speak("One after the other.", seed=seed).wait()
    assert len(admitted) == 3
    for deadline, now in admitted:
        assert began <= deadline <= now
        began = deadline


def endless(wires, **parameters):
    return wires.speak("Goes on and on.", eagerness=-5.0, **parameters)


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_op_cancel_ends_with_reason_cancelled(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        call = endless(wires, stream_id="a", seed=1)
        until(lambda: call.chunks)
        assert wires.control("cancel", "a").wait().error is None
        assert call.wait().error is None and call.finish_reason == "cancelled"
        assert wires.talker_engine.active == 0
        assert "no open stream" in wires.control("cancel", "a").wait().error


def test_a_client_that_is_gone_is_noticed_at_the_next_chunk(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        call = endless(wires, seed=1)
        until(lambda: call.chunks)
        call.cancelled = True
        call.wait()
        assert call.error is None
        until(lambda: wires.talker_engine.active == 0)


def test_two_streams_may_not_have_one_id(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        first = endless(wires, stream_id="a", seed=1)
        assert "is speaking already" in wires.speak("Me too.", stream_id="a").wait().error
        wires.control("cancel", "a").wait()
        first.wait()
        assert wires.speak("Now me.", stream_id="a", seed=1).wait().error is None


def test_text_that_arrives_later_is_one_stream(ledger):
    family = FAMILIES["qwen"]
    with Wires(family, ledger) as wires:
        call = wires.speak("First part. ", stream_id="a", seed=3, text_open=True)
        for part in ("Second part. ", "Third"):
            assert wires.control("append", "a", part).wait().error is None
        assert wires.control("end", "a").wait().error is None
        assert "the text of stream 'a' is closed" in (
            wires.control("append", "a", "x").wait().error or ""
        ) or (call.done.is_set())
        assert call.wait().finish_reason == "stop"
        assert_in_order(call, family.spec)


def test_text_after_the_end_is_refused(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        call = wires.speak("First part.", stream_id="a", seed=1, text_open=True, eagerness=-5.0)
        wires.control("end", "a").wait()
        assert "the text of stream 'a' is closed" in wires.control("append", "a", "x").wait().error
        wires.control("cancel", "a").wait()
        call.wait()


def test_an_open_text_without_words_is_told_at_its_end(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        call = wires.speak(" ", stream_id="a", text_open=True)
        wires.control("end", "a").wait()
        assert "the text ended without a word" in call.wait().error


def test_a_stream_that_waits_too_long_for_text_is_given_up(ledger):
    with Wires(FAMILIES["qwen"], ledger, limits=LimitConfig(idle_seconds=0.2)) as wires:
        call = wires.speak("One sentence. And", stream_id="a", seed=1, text_open=True).wait()
        assert call.error == "CANCELLED: no text came for 0.2 s; use op=end to close the text"


def test_draining_admits_nobody_and_fails_what_is_open_at_the_limit(ledger):
    with Wires(FAMILIES["qwen"], ledger) as wires:
        call = endless(wires, seed=1)
        until(lambda: call.chunks)
        status = wires.control("drain", limit_seconds=0.2).wait().chunks[0][1]
        assert status["draining"] and status["active"] == 1
        assert wires.speak("Late.").wait().error.startswith("UNAVAILABLE: the server is draining")
        assert call.wait().error == "UNAVAILABLE: the server is shutting down"


def test_the_codec_ends_all_streams_when_the_talker_dies(ledger):
    """Also those that have had no audio yet: the opening message gave the codec a request to hold."""
    with Wires(FAMILIES["qwen"], ledger) as wires:
        speaking = endless(wires, seed=1)
        waiting = wires.speak(" ", stream_id="a", text_open=True)
        until(lambda: speaking.chunks and len(wires.codec._streams) == 2)
        speaking.orphaned = waiting.orphaned = True
        frozen = threading.Event()
        wires.talker._inbox.put(lambda: frozen.wait(10))  # the loop stops as that of a killed process
        os.close(wires.talker_ledger._locks.pop("talker"))  # and the kernel drops its lock
        for call in (speaking, waiting):
            until(lambda call=call: call.error is not None)
            assert call.error == "UNAVAILABLE: the talker process died; try again in seconds"
        until(lambda: not wires.codec._streams)
        wires.talker._stopping = True
        frozen.set()


def test_the_talker_fails_all_streams_when_the_codec_is_not_there(ledger):
    with Wires(FAMILIES["qwen"], ledger, with_codec=False) as wires:
        call = wires.speak("Anyone there?")
        assert call.wait().error.startswith("UNAVAILABLE: the codec is not running")


def test_no_stream_has_more_chunks_on_the_way_than_its_credit(ledger):
    with Wires(FAMILIES["qwen"], ledger, engine=replace(ENGINE, max_slots=2, credit=2)) as wires:
        most = []
        decode = wires.codec_engine.decode

        def slow(batch):
            time.sleep(0.02)
            most.append(int(wires.talker_ledger.sent[0]) - (int(wires.talker_ledger.decoded[0]) & 0xFFFFF))
            return decode(batch)

        wires.codec_engine.decode = slow
        endless(wires, seed=1, max_seconds=0.1).wait()
    assert max(most) <= 2


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_happens_to_streams_none_hangs_leaks_or_breaks_a_rule(ledger, data):
    """Random texts, cancels, disconnects, failures; `wired` asserts Triton's rules at every call."""
    family = FAMILIES[data.draw(st.sampled_from(["qwen", "orpheus-snac", "moss-delay", "cosyvoice"]))]
    with Wires(family, ledger) as wires:
        calls = []
        for number in range(data.draw(st.integers(1, 5))):
            text = data.draw(st.sampled_from([*TEXTS, "*", "x " * 200]))
            calls.append(wires.speak(text, seed=number, stream_id=str(number), max_seconds=0.1))
            for victim in data.draw(st.lists(st.integers(0, number), max_size=1)):
                if data.draw(st.booleans()):
                    wires.control("cancel", str(victim))
                else:
                    calls[victim].cancelled = True
        for call in calls:
            call.wait()
        until(lambda: wires.talker_engine.active == wires.talker_engine.queued == 0)
        until(lambda: not wires.codec._streams)

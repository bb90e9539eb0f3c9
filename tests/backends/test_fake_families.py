"""The interface fits every kind of family: each fake one keeps the engines' promises.

Seven tokens a frame, delay patterns, float latents, look-ahead, held-back samples, rerun decoders, stereo:
see tests/fakes/families.py for which stands for what.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.codec_engine import CodecEngine
from backends.talker import SamplingParameters, SpeechRequest
from backends.talker_engine import TalkerEngine
from backends.voice import EngineConfig
from tests.fakes.driving import Utterance, no_progress, open_stream, play, speak, speak_all
from tests.fakes.families import FAMILIES, FakeFamily
from tests.fakes.strict import StrictCapture

EVERY = pytest.mark.parametrize("name", FAMILIES)
LADDER = (1, 2, 4, 7)
CONFIG = EngineConfig(
    max_slots=4,
    queue=20,
    max_length=160,
    talker_batch_buckets=(1, 2, 4),
    codec_batch_buckets=(1, 2, 4),
    codec_slots=5,
    length_buckets=(64, 160),
)


def requests(count: int) -> list[SpeechRequest]:
    return [
        SpeechRequest(
            text="hello there"[: 3 + i] * (1 + i % 3),
            seed=100 + i,
            max_frames=14,
            sampling=SamplingParameters(
                temperature=0.0 if i % 5 == 4 else 1.0,
                top_k=8 * (i % 3),
                top_p=1.0 - 0.1 * (i % 2),
                repetition_penalty=1.2,
                extra={"eagerness": 4.0},
            ),
        )
        for i in range(count)
    ]


def talker_engine(family: FakeFamily) -> TalkerEngine:
    engine = TalkerEngine(family.talker(), CONFIG, capture=StrictCapture())
    engine.warm_up(no_progress)
    return engine


@functools.cache
def codec_engine(name: str) -> CodecEngine:
    """One engine for all tests of a family: its slots are reused hundreds of times."""
    engine = CodecEngine(FAMILIES[name].codec(), CONFIG, LADDER, capture=StrictCapture())
    engine.warm_up(no_progress)
    return engine


def frames_of(family: FakeFamily, count: int, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    spec = family.spec
    if spec.kind == "latent":
        return chance.normal(size=(count, spec.width)).astype(np.float32)
    return chance.integers(0, spec.sizes[0], (count, spec.width)).astype(np.int32)


# Talkers.


@EVERY
def test_a_seed_gives_the_same_frames_alone_and_among_others(name: str) -> None:
    engine = talker_engine(FAMILIES[name])
    asked = requests(6)
    together = speak_all(engine, asked)
    assert len({len(s.frames) for s in together}) > 1
    for request, expected in list(zip(asked, together, strict=True))[2:5]:
        (alone,) = speak_all(engine, [request])
        np.testing.assert_array_equal(alone.frames, expected.frames)
        assert alone.reason == expected.reason
    assert engine.counters.misses == engine.counters.fallbacks == engine.counters.captures_runtime == 0


@EVERY
def test_cancelled_and_late_neighbours_change_no_frame(name: str) -> None:
    family = FAMILIES[name]
    asked = requests(8)
    expected = speak_all(talker_engine(family), asked[:2])
    engine = talker_engine(family)
    talker = engine.talker
    kept = [open_stream(talker, r) for r in asked[:2]]
    others = [open_stream(talker, r) for r in asked[2:]]

    def each_step(i: int) -> None:
        if i < 2:
            engine.admit(kept[i])
        if i < 6:
            engine.admit(others[i])
        if i in (3, 4, 7):
            engine.cancel(others[i // 2])

    heard = speak(engine, kept, each_step)
    for one, other in zip(heard, expected, strict=True):
        np.testing.assert_array_equal(one.frames, other.frames)


@EVERY
def test_frames_are_what_the_spec_says(name: str) -> None:
    family = FAMILIES[name]
    for spoken in speak_all(talker_engine(family), requests(3)):
        assert spoken.frames.shape[1] == family.spec.width
        if family.spec.kind == "codes":
            assert spoken.frames.dtype == np.int32
            assert (spoken.frames >= 0).all()
            assert (spoken.frames < np.array(family.spec.sizes)).all()
        else:
            assert spoken.frames.dtype == np.float32


@EVERY
def test_talker_state_is_counted(name: str) -> None:
    assert talker_engine(FAMILIES[name]).talker.slot_bytes() > 0


# Codecs.


@EVERY
@settings(max_examples=6, deadline=None)
@given(
    total=st.integers(0, 40),
    cuts=st.lists(st.sampled_from(LADDER), min_size=1, max_size=5),
    prefix=st.sampled_from([0, 0, 3, 11]),
    empty_end=st.booleans(),
)
def test_any_chunking_equals_the_whole_decode(
    name: str, total: int, cuts: list[int], prefix: int, empty_end: bool
) -> None:
    family, engine = FAMILIES[name], codec_engine(name)
    spec = family.spec
    u = Utterance(frames_of(family, prefix + total, total), cuts, prefix, empty_end=empty_end)
    play(engine, [u], total)
    assert u.audio.shape == (
        spec.channels,
        max(0, total * spec.samples_per_frame - engine.codec.tail_loss),
    ) or (total == 0)
    if total:
        whole = engine.codec.whole(u.frames)[:, prefix * spec.samples_per_frame :]
        np.testing.assert_allclose(u.audio, whole, rtol=0, atol=1e-5)


@EVERY
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_streams_in_any_order_with_cancelled_ones_among_them_equal_their_whole_decodes(
    name: str, seed: int
) -> None:
    family, engine = FAMILIES[name], codec_engine(name)
    chance = random.Random(seed)
    streams = [
        Utterance(
            frames_of(family, prefix + chance.randint(1, 30), seed + i),
            chance.choices(LADDER, k=3),
            prefix,
            context=chance.choice([0, 5]),
            cancel_after=chance.choice([None, None, 0, 1, 2]),
        )
        for i, prefix in enumerate(chance.choices([0, 6], k=6))
    ]
    play(engine, streams, seed)
    spf = family.spec.samples_per_frame
    for u in streams:
        assert not u.errors
        if u.cancel_after is None:
            whole = engine.codec.whole(u.frames)[:, u.prefix * spf :]
            np.testing.assert_allclose(u.audio, whole, rtol=0, atol=1e-5)
    assert engine.pending == 0
    assert len(engine._free) == CONFIG.codec_slots


@EVERY
def test_every_call_of_a_ladder_schedule_was_prepared(name: str) -> None:
    engine = codec_engine(name)
    family = FAMILIES[name]
    before = engine.counters.misses
    for seed in range(3):
        chance = random.Random(seed)
        play(
            engine,
            [Utterance(frames_of(family, chance.randint(1, 60), seed), [1, 1, 2, 4, 7]) for _ in range(6)],
            seed,
        )
    assert engine.counters.misses == before
    assert engine.counters.captures_runtime == engine.counters.fallbacks == 0


@EVERY
def test_speech_is_whole_from_talker_to_sound(name: str) -> None:
    family, engine = FAMILIES[name], codec_engine(name)
    spoken = [s for s in speak_all(talker_engine(family), requests(5)) if len(s.frames)]
    streams = [Utterance(s.frames, [1, 2, 4, 7]) for s in spoken]
    play(engine, streams)
    for u in streams:
        np.testing.assert_allclose(u.audio, engine.codec.whole(u.frames), rtol=0, atol=1e-5)
        assert np.abs(u.audio).max() > 1e-3


# What sets families apart.


@pytest.mark.parametrize("name", ["orpheus-snac", "higgs"])
def test_the_look_ahead_of_window_codecs_is_needed_and_enough(name: str) -> None:
    codec = FAMILIES[name].codec()
    frames = frames_of(FAMILIES[name], 20, 1)
    spf = codec.spec.samples_per_frame
    whole = codec.whole(frames)[:, 8 * spf : 9 * spf]

    def error(left: int, right: int) -> float:
        window = codec.whole(frames[8 - left : 9 + right])
        return float(np.abs(window[:, left * spf : (left + 1) * spf] - whole).max())

    assert error(codec.left, codec.right) < 1e-6
    assert error(codec.left - 1, codec.right) > 1e-4
    assert error(codec.left, codec.right - 1) > 1e-4


def test_held_back_samples_are_the_next_call_s_first() -> None:
    family, engine = FAMILIES["omni"], codec_engine("omni")
    assert engine.codec.tail_loss == 4 * 3 + 3
    u = Utterance(frames_of(family, 9, 3), [3, 2, 4])
    play(engine, [u])
    lengths = [s.shape[1] for s in u.samples]
    assert lengths == [3 * 24 - 15, 2 * 24, 4 * 24]


def test_a_rerun_codec_speaks_on_its_grid_and_gives_the_rest_at_the_end() -> None:
    family, engine = FAMILIES["cosyvoice"], codec_engine("cosyvoice")
    u = Utterance(frames_of(family, 17, 3), [4])
    play(engine, [u])
    # Four frames a chunk, three of look-ahead, blocks of four.
    assert [s.shape[1] // 16 for s in u.samples] == [0, 4, 4, 4, 5]
    off_grid = engine.codec.whole(u.frames[:10])
    whole = engine.codec.whole(u.frames)
    assert np.abs(off_grid - whole[:, : off_grid.shape[1]]).max() > 1e-4


def test_stereo_channels_differ_and_keep_their_places() -> None:
    family, engine = FAMILIES["moss-local"], codec_engine("moss-local")
    u = Utterance(frames_of(family, 12, 5), [1, 2, 4])
    play(engine, [u])
    assert u.audio.shape == (2, 12 * 32)
    assert np.abs(u.audio[0] - u.audio[1]).max() > 1e-3


def test_a_delayed_talker_needs_a_row_more_for_each_book_before_its_first_frame() -> None:
    engine = talker_engine(FAMILIES["moss-delay"])
    (stream,) = [open_stream(engine.talker, requests(1)[0])]
    engine.admit(stream)
    made = [len(engine.step().frames) for _ in range(6)]
    # One run of prefill comes with the first step.
    assert made == [0, 0, 0, 1, 1, 1]


def test_seven_tokens_make_a_frame() -> None:
    engine = talker_engine(FAMILIES["orpheus-snac"])
    engine.admit(open_stream(engine.talker, requests(1)[0]))
    made = [len(engine.step().frames) for _ in range(14)]
    assert made == [0] * 6 + [1] + [0] * 6 + [1]

"""The embedded voice on both engines, strictly captured: what the fake families keep, a trained voice keeps
too."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.codec import Codec
from backends.codec_engine import CodecEngine, CodecJob
from backends.family import load_family
from backends.talker import SpeechRequest
from backends.talker_engine import TalkerEngine
from backends.voice import EngineConfig, load_voice
from tests.fakes.driving import Utterance, no_progress, open_stream, play, speak, speak_all
from tests.fakes.strict import StrictCapture

CPU = torch.device("cpu")
VOICE = load_voice(Path(__file__).parents[2] / "voices" / "wren.yaml")
LADDER = VOICE.stream.frame_sizes("state")
CONFIG = EngineConfig(
    max_slots=4,
    queue=8,
    max_length=VOICE.engine.max_length,
    length_buckets=(VOICE.engine.max_length,),
    talker_batch_buckets=(1, 2, 4),
    codec_batch_buckets=(1, 2, 4),
    codec_slots=5,
)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_family("wren").load_codec(VOICE, CPU)


@pytest.fixture(scope="module")
def codec_engine(codec: Codec) -> CodecEngine:
    engine = CodecEngine(codec, CONFIG, LADDER, capture=StrictCapture())
    engine.warm_up(no_progress)
    return engine


@pytest.fixture(scope="module")
def talker_engine() -> TalkerEngine:
    engine = TalkerEngine(load_family("wren").load_talker(VOICE, CPU), CONFIG, capture=StrictCapture())
    engine.warm_up(no_progress)
    return engine


def whole(engine: CodecEngine, frames: np.ndarray) -> np.ndarray:
    """All frames in one decode, on a codec of its own slot."""
    codec = engine.codec
    slots = torch.tensor([CONFIG.codec_slots])  # the null slot
    codec.open(slots)
    with torch.inference_mode():
        out = codec.decode(
            slots,
            torch.from_numpy(frames.astype(np.int64))[None],
            torch.tensor([len(frames)]),
            torch.tensor([True]),
        )
    return out.pcm[0, :, : int(out.count[0])].numpy()


def random_frames(codec: Codec, count: int, seed: int) -> np.ndarray:
    sizes = np.array(codec.spec.sizes)
    return np.random.default_rng(seed).integers(0, sizes, (count, len(sizes))).astype(np.int32)


@settings(max_examples=5, deadline=None)
@given(
    total=st.integers(1, 40),
    cuts=st.lists(st.sampled_from(LADDER), min_size=1, max_size=4),
    prefix=st.sampled_from([0, 5]),
)
def test_any_chunking_equals_the_whole_decode(
    codec_engine: CodecEngine, total: int, cuts: list[int], prefix: int
) -> None:
    u = Utterance(random_frames(codec_engine.codec, prefix + total, total), cuts, prefix)
    play(codec_engine, [u], total)
    expected = whole(codec_engine, u.frames)[:, prefix * codec_engine.codec.spec.samples_per_frame :]
    assert u.audio.shape == expected.shape
    np.testing.assert_allclose(u.audio, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_in_any_order_with_cancelled_ones_among_them_equal_their_whole_decodes(
    codec_engine: CodecEngine, seed: int
) -> None:
    """More streams than slots, so that slots are used again."""
    chance = random.Random(seed)
    streams = [
        Utterance(
            random_frames(codec_engine.codec, chance.randint(3, 30), 10 * seed + i),
            chance.choices(LADDER, k=3),
            cancel_after=chance.choice([None, None, 1, 2]),
        )
        for i in range(9)
    ]
    play(codec_engine, streams, seed)
    for u in streams:
        assert not u.errors
        if u.cancel_after is None:
            np.testing.assert_allclose(u.audio, whole(codec_engine, u.frames), rtol=0, atol=1e-5)
    assert codec_engine.counters.misses == codec_engine.counters.fallbacks == 0


TEXTS = ["A short one.", "Rain fell on the roof all night.", "Yes!", "Who has seen the wind?", "Go on."]


def requests() -> list[SpeechRequest]:
    sampling = dataclasses.replace(load_family("wren").load_talker(VOICE, CPU).defaults, temperature=0.9)
    return [
        SpeechRequest(text, seed=i, sampling=sampling, max_frames=40)
        for i, text in enumerate([*TEXTS, *TEXTS])
    ]


def test_a_seed_gives_the_same_codes_alone_among_others_and_beside_cancelled_streams(
    talker_engine: TalkerEngine,
) -> None:
    asked = requests()
    talker = talker_engine.talker
    alone = [speak_all(talker_engine, [request])[0] for request in asked[:3]]
    assert all(len(s.frames) > 3 for s in alone)
    kept = [open_stream(talker, r) for r in asked[:3]]
    others = [open_stream(talker, r) for r in asked[3:9]]

    def each_step(i: int) -> None:
        if i < 3:
            talker_engine.admit(kept[i])
        if i < 6:
            talker_engine.admit(others[i])
        if i in (2, 5, 6):
            talker_engine.cancel(others[i - 2])

    together = speak(talker_engine, kept, each_step)
    for other in others:
        talker_engine.cancel(other)
    for one, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.frames, expected.frames)
    counters = talker_engine.counters
    assert (counters.misses, counters.fallbacks, counters.captures_runtime) == (0, 0, 0)


def test_a_ramp_at_64_streams_captures_35_codec_graphs_and_then_none(codec: Codec) -> None:
    """Every stream sends 1, 2, 4, 8, 15 frames and a last chunk of any length; rows come and go all the
    time."""
    assert LADDER == (1, 2, 4, 8, 15)
    streams = 64
    config = dataclasses.replace(
        VOICE.engine, max_slots=streams, codec_slots=streams, codec_batch_buckets=(1, 2, 4, 8, 16, 32, 64)
    )
    capture = StrictCapture()
    engine = CodecEngine(codec, config, LADDER, capture=capture)
    engine.warm_up(no_progress)
    assert capture.captured == engine.counters.captures_warmup == 35
    assert engine.counters.fallbacks == 0

    chance = np.random.default_rng(0)
    got = dict.fromkeys(range(streams), 0)
    sent = dict.fromkeys(range(streams), 0)
    last = {key: int(chance.integers(1, 15)) for key in range(streams)}
    for index, size in enumerate((*LADDER, 0)):
        for key in range(streams):
            frames = random_frames(codec, size or last[key], key)
            engine.submit(CodecJob(key, index, frames, 0, sent[key], size == 0, float(index)))
            sent[key] += len(frames)
        while batch := engine.form_batch():
            for result in engine.decode(batch):
                assert result.error is None
                got[result.job.key] += result.samples.shape[1]
    assert got == {key: sent[key] * codec.spec.samples_per_frame for key in range(streams)}
    counters = engine.counters
    assert (counters.captures_runtime, counters.misses, counters.fallbacks) == (0, 0, 0)
    assert capture.captured == 35

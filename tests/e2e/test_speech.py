"""What a user gets from the running server: complete, ordered, exact, reproducible speech."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch

from backends.family import load_family
from backends.graphs import EagerCapture
from backends.serving.settings import VOICES
from backends.talker import SamplingParameters, SpeechRequest
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import load_voice

SENTENCE = "Streaming speech should start quickly and never stop in the middle."
SENTENCES = [
    "The birch canoe slid on the smooth planks.",
    "Glue the sheet to the dark blue background.",
    "It is easy to tell the depth of a well.",
    "Rice is often served in round bowls.",
    "Four hours of steady work faced us.",
]
SCHEDULES = [
    {},
    {"codec_chunk_ramp": "off"},
    {"codec_chunk_ramp": "1,2,4"},
    {"codec_chunk_ramp": "8,15"},
    {"codec_chunk_ramp": "off", "codec_chunk_frames": 2, "initial_codec_chunk_frames": 2},
    {"codec_chunk_adaptive": True},
]


def complete(utterance):
    """Whole and in order: chunk after chunk without hole or overlap, one end."""
    position = 0
    for index, chunk in enumerate(utterance.chunks):
        assert chunk.index == index
        assert chunk.first_sample == position
        assert len(chunk.samples) == chunk.frames * 1280
        position += len(chunk.samples)
    reasons = [chunk.finish_reason for chunk in utterance.chunks]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    return position > 0


@cache
def whole_decode(text, seed):
    """Codes made by the talker alone in this process, decoded at once."""
    torch.set_num_threads(1)
    voice = load_voice(VOICES / "wren.yaml")
    family = load_family(voice.family)
    talker = family.load_talker(voice, torch.device("cpu"))
    engine = TalkerEngine(talker, voice.engine, capture=EagerCapture())
    sampling = SamplingParameters(
        **{
            "temperature": talker.defaults.temperature,
            "top_k": talker.defaults.top_k,
            "top_p": talker.defaults.top_p,
            **voice.sampling,
        },
        extra={name: p.default for name, p in talker.parameters.items()},
    )
    request = SpeechRequest(text, seed=seed, sampling=sampling)
    stream = SpeechStream(request, more_prompts=False)
    stream.prompts.append(talker.build_prompt(request, text, True))
    engine.admit(stream)
    frames = []
    while stream.finish_reason is None:
        frames += list(engine.step().frames)
    codec = family.load_codec(voice, torch.device("cpu"))
    codec.allocate(1)
    slots = torch.tensor([0])
    with torch.inference_mode():
        codec.open(slots)
        codes = torch.from_numpy(np.stack(frames)).long()[None]
        output = codec.decode(slots, codes, torch.tensor([len(frames)]), torch.tensor([True]))
    return output.pcm[0].numpy().T


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_streamed_audio_is_the_whole_decode_of_the_same_codes(client, schedule):
    utterance = client.say(SENTENCE, seed=11, **schedule)
    assert complete(utterance)
    expected = whole_decode(SENTENCE, 11)[:, 0]
    assert utterance.samples.shape == expected.shape
    np.testing.assert_allclose(utterance.samples, expected, atol=1e-5)


def test_the_first_chunk_is_small_and_they_grow_along_the_ramp(client):
    sizes = [chunk.frames for chunk in client.say(SENTENCE, seed=1).chunks]
    ladder = load_voice(VOICES / "wren.yaml").stream
    ramp = list(ladder.ramp)
    assert sizes[: len(ramp)] == ramp
    assert set(sizes[len(ramp) : -1]) <= {ladder.steady}


def test_the_first_chunk_arrives_before_the_last_frame_is_made(client):
    utterance = client.say(SENTENCE + " " + " ".join(SENTENCES), seed=1)
    arrivals = [arrival.seconds for arrival in utterance.trace.arrivals]
    assert arrivals[0] < arrivals[-1] / 2


def test_the_same_seed_speaks_the_same_alone_and_among_fifteen_others(client):
    alone = client.say(SENTENCES[0], seed=5).samples
    with ThreadPoolExecutor(16) as pool:
        others = [pool.submit(client.say, SENTENCES[i % 5], seed=100 + i) for i in range(15)]
        among = pool.submit(client.say, SENTENCES[0], seed=5).result().samples
        for other in others:
            assert complete(other.result())
    assert among.shape == alone.shape
    np.testing.assert_allclose(among, alone, atol=1e-5)


def test_another_seed_speaks_otherwise(client):
    one, two = (client.say(SENTENCES[1], seed=seed).samples for seed in (1, 2))
    assert one.shape != two.shape or np.abs(one - two).max() > 1e-2


def test_twenty_requests_one_after_the_other(client):
    for i in range(20):
        assert complete(client.say(SENTENCES[i % 5], seed=i))


def test_thirty_two_requests_at_once(client):
    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(lambda i: client.say(SENTENCES[i % 5], seed=i), range(32)))
    assert all(complete(utterance) for utterance in results)


def test_long_text_is_one_continuous_stream(client):
    text = " ".join(f"This is sentence number {n} of a long story." for n in range(1, 25))
    utterance = client.say(text, seed=3)
    assert complete(utterance)
    assert utterance.seconds > 24


def test_the_budget_ends_a_stream_with_reason_length(client):
    utterance = client.say(SENTENCE, seed=3, max_seconds=0.8)
    assert utterance.chunks[-1].finish_reason == "length"
    assert len(utterance.samples) == 10 * 1280


def test_speed_changes_how_long_it_takes(client):
    slow, fast = (client.say(SENTENCE, seed=3, speed=speed).seconds for speed in (0.7, 1.5))
    assert slow > 1.05 * fast

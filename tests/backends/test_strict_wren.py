"""The embedded voice on the strict back end: nothing is captured after warm-up, no shape is missed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.codec_engine import CodecEngine, CodecJob
from backends.family import load_family
from backends.voice import VoiceConfig, load_voice
from tests.fakes.driving import no_progress
from tests.fakes.strict import StrictCapture

VOICE = Path(__file__).parents[2] / "voices" / "wren.yaml"
STREAMS = 64


@pytest.fixture(scope="module")
def voice() -> VoiceConfig:
    return load_voice(VOICE)


def test_a_ramp_at_64_streams_captures_35_codec_graphs_and_then_none(voice: VoiceConfig) -> None:
    """Every stream sends 1, 2, 4, 8, 15 frames and a last chunk of another length; rows come and go all the
    time."""
    codec = load_family("wren").load_codec(voice, torch.device("cpu"))
    ladder = voice.stream.frame_sizes("state")
    assert ladder == (1, 2, 4, 8, 15)
    config = dataclasses.replace(
        voice.engine, max_slots=STREAMS, codec_slots=STREAMS, codec_batch_buckets=(1, 2, 4, 8, 16, 32, 64)
    )
    capture = StrictCapture()
    engine = CodecEngine(codec, config, ladder, capture=capture)
    engine.warm_up(no_progress)
    assert capture.captured == engine.counters.captures_warmup == 35
    assert engine.counters.fallbacks == 0

    chance = np.random.default_rng(0)
    sizes = np.array(codec.spec.sizes)
    got = dict.fromkeys(range(STREAMS), 0)
    sent = dict.fromkeys(range(STREAMS), 0)
    last = {key: int(chance.integers(1, 15)) for key in range(STREAMS)}
    for index, size in enumerate((*ladder, 0)):
        for key in range(STREAMS):
            count = size or last[key]
            frames = chance.integers(0, sizes, (count, len(sizes))).astype(np.int32)
            engine.submit(CodecJob(key, index, frames, 0, sent[key], size == 0, float(index)))
            sent[key] += count
        while batch := engine.form_batch():
            for result in engine.decode(batch):
                assert result.error is None
                got[result.job.key] += result.samples.shape[1]
    assert got == {key: sent[key] * codec.spec.samples_per_frame for key in range(STREAMS)}
    counters = engine.counters
    assert (counters.captures_runtime, counters.misses, counters.fallbacks) == (0, 0, 0)
    assert capture.captured == 35

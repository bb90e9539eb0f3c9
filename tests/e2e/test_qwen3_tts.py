"""Qwen3-TTS on the real server, with tiny random checkpoints: every prompt style, open text, cancelling.

What the server streams is compared with the same request made in this process and decoded at once.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.families.qwen3_tts.random_checkpoint import write_random_checkpoint
from backends.family import load_family
from backends.graphs import EagerCapture
from backends.talker import SamplingParameters, SpeechRequest
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import load_voice
from client import InvalidArgument, TTSClient
from tests.e2e.servers import running_server
from tests.qwen3_tts.golden import cases

VOICE = """
name: tiny
family: qwen3_tts
checkpoint: checkpoint
stream: {codec_chunk_ramp: [2, 4, 8], initial_codec_chunk_frames: 1, codec_chunk_frames: 8}
segment_chars: 80 # the tiny tokenizer has a token a letter
engine:
  max_slots: 4
  max_length: 512
  length_buckets: [512]
  talker_batch_buckets: [1, 2, 4]
  codec_batch_buckets: [1, 2, 4]
  threads: 1
"""
TEXT = "Good morning to you all, and good night."
RATE = 24_000
SECONDS, FRAMES = 2.4, 30  # enough for five chunks
OPTIONS = {
    "custom_voice": {"voice": "ryan", "language": "english", "instructions": "Speak slowly."},
    "voice_design": {"instructions": "An old sailor."},
    "x_vector": {"reference_audio": cases.reference_audio(), "reference_sample_rate": RATE},
    "in_context": {
        "reference_audio": cases.reference_audio(),
        "reference_sample_rate": RATE,
        "reference_text": cases.REFERENCE_TEXT,
    },
}


def write_voice(folder: Path, style: str, seed: int = cases.SEED) -> Path:
    write_random_checkpoint(folder / "checkpoint", "1.7b", style, tiny=True, seed=seed)
    (folder / "voice.yaml").write_text(VOICE)
    return folder / "voice.yaml"


@pytest.fixture(scope="module", params=["custom_voice", "voice_design", "base"])
def served(request, tmp_path_factory):
    """(client, path of the voice, names in OPTIONS) of a running server, for each kind of checkpoint."""
    path = write_voice(tmp_path_factory.mktemp(request.param), request.param)
    styles = ("x_vector", "in_context") if request.param == "base" else (request.param,)
    runtime = tmp_path_factory.mktemp("server")
    with (
        running_server(runtime, voice=str(path), device="cpu", probe_seconds=0.0) as settings,
        TTSClient(settings.grpc_url) as client,
    ):
        yield client, path, styles


@cache
def families(path: Path, layout: str):
    torch.set_num_threads(1)
    text = path.read_text() + f"options: {{text_layout: {layout}}}\n"
    (path.parent / f"{layout}.yaml").write_text(text)
    voice = load_voice(path.parent / f"{layout}.yaml")
    family, cpu = load_family("qwen3_tts"), torch.device("cpu")
    return voice, family.load_talker(voice, cpu), family.load_codec(voice, cpu)


def expected(path: Path, text: str, seed: int, options: dict, layout: str = "auto") -> np.ndarray:
    """The audio of one request, its codes decoded in one call after those of the reference."""
    voice, talker, codec = families(path, layout)
    extra = {name: p.default for name, p in talker.parameters.items()}
    defaults = talker.defaults
    asked = SpeechRequest(
        text,
        speaker=options.get("voice"),
        language=options.get("language"),
        instructions=options.get("instructions"),
        reference_audio=options.get("reference_audio"),
        reference_rate=options.get("reference_sample_rate", 0),
        reference_text=options.get("reference_text"),
        seed=seed,
        sampling=SamplingParameters(
            defaults.temperature, defaults.top_k, defaults.top_p, defaults.repetition_penalty, extra
        ),
        max_frames=FRAMES,
    )
    prompt = talker.build_prompt(asked, text, True)
    alone = replace(voice.engine, max_slots=1)
    engine = TalkerEngine(talker, alone, capture=EagerCapture())
    stream = SpeechStream(asked, more_prompts=False, text_ended=True)
    stream.prompts.append(prompt)
    engine.admit(stream)
    frames = []
    while stream.finish_reason is None:
        frames += list(engine.step().frames)
    codes = torch.from_numpy(np.stack(frames)).long()
    prefix = 0
    if prompt.prefix_frames is not None:
        prefix = len(prompt.prefix_frames)
        codes = torch.cat([prompt.prefix_frames, codes])
    with torch.inference_mode():
        return codec.decoder(codes[None])[0, 0, prefix * 1920 :].numpy()


@pytest.mark.parametrize("schedule", [{}, {"codec_chunk_ramp": "off"}], ids=["ramp", "no ramp"])
def test_every_style_sounds_as_one_decode_of_its_codes(served, schedule):
    client, path, styles = served
    for seed, style in enumerate(styles, start=3):
        utterance = client.say(TEXT, seed=seed, max_seconds=SECONDS, **OPTIONS[style], **schedule)
        audio = expected(path, TEXT, seed, OPTIONS[style])
        assert len(audio) > 1920
        assert utterance.samples.shape == audio.shape
        np.testing.assert_allclose(utterance.samples, audio, atol=1e-5)
        sizes = [chunk.frames for chunk in utterance.chunks]
        ladder = [1, 8, 8, 8] if schedule else [2, 4, 8, 8]
        assert sizes[:-1][:4] == ladder[: len(sizes) - 1]


def test_text_that_is_appended_sounds_as_if_it_had_been_there(served):
    """Words cut anywhere; in-context cloning starts once its reference has enough text beside it."""
    client, path, styles = served
    style = styles[-1]
    parts = ["Good mor", "ning to y", "ou all, ", "and good night", "."]
    stream = client.open(parts[0], seed=21, max_seconds=SECONDS, **OPTIONS[style])

    def write() -> None:
        for part in parts[1:]:
            time.sleep(0.05)
            stream.append(part)
        stream.end()

    writer = threading.Thread(target=write)
    writer.start()
    samples = np.concatenate([chunk.samples for chunk in stream])
    writer.join()
    audio = expected(path, TEXT, 21, OPTIONS[style], layout="per_frame")
    assert samples.shape == audio.shape
    np.testing.assert_allclose(samples, audio, atol=1e-5)


def test_cancelling_frees_the_slot_and_harms_nobody(served):
    client, path, styles = served
    options = OPTIONS[styles[0]]
    doomed = client.stream(" ".join([TEXT] * 40), seed=1, stream_id="doomed", **options)
    next(doomed)
    client.cancel("doomed")
    assert list(doomed)[-1].finish_reason == "cancelled"
    deadline = time.monotonic() + 10
    while client.ping().active:
        assert time.monotonic() < deadline, "the slot is not freed"
        time.sleep(0.02)
    after = client.say(TEXT, seed=5, max_seconds=SECONDS, **options).samples
    np.testing.assert_allclose(after, expected(path, TEXT, 5, options), atol=1e-5)


def test_what_the_checkpoint_cannot_do_is_told(served):
    client, _, styles = served
    if "x_vector" in styles:
        with pytest.raises(InvalidArgument, match="this checkpoint clones voices: give reference_wav"):
            client.say(TEXT)
    else:
        with pytest.raises(InvalidArgument, match="does not clone"):
            client.say(TEXT, **OPTIONS["x_vector"])
    with pytest.raises(InvalidArgument, match="language is 'klingon'; this voice speaks auto"):
        client.say(TEXT, **{**OPTIONS[styles[0]], "language": "klingon"})

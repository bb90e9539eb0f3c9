"""The network against the reference package: golden/make_golden.py made the files with qwen-tts 0.1.1."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.families.qwen3_tts.config import SpeechTokenizerConfig, TalkerConfig
from backends.families.qwen3_tts.tensors import (
    decoder_tensors,
    encoder_tensors,
    speaker_encoder_tensors,
    talker_tensors,
)
from backends.families.qwen3_tts.tokenizer import TextTokenizer
from backends.talker import SpeechRequest
from tests.qwen3_tts.golden import cases
from tests.qwen3_tts.model import GREEDY, codec, engine, run, stream, talker

HERE = Path(__file__).parent / "golden"
TALKER = np.load(HERE / "talker.npz")
CODEC = np.load(HERE / "codec.npz")
CHECKPOINTS = tuple(dict.fromkeys(case.checkpoint for case in cases.CASES))


def asked(case: cases.Case) -> SpeechRequest:
    request = SpeechRequest(
        case.text,
        speaker=case.speaker,
        language=case.language,
        instructions=case.instructions,
        sampling=GREEDY,
        max_frames=cases.FRAMES,
    )
    if case.reference is None:
        return request
    text = cases.REFERENCE_TEXT if case.reference == "in_context" else None
    return replace(
        request, reference_audio=cases.reference_audio(), reference_rate=24_000, reference_text=text
    )


def load(checkpoint, case: cases.Case):
    model = talker(checkpoint(case.checkpoint), text_layout="whole" if case.whole else "per_frame")
    model.network.head.weight[model._ids.codec_eos] *= case.eos_gain
    return model


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_random_checkpoint_has_the_bits_that_the_goldens_were_made_from(checkpoint, name):
    parts = (checkpoint(name) / part / "model.safetensors" for part in ("", "speech_tokenizer"))
    assert zlib.crc32(b"".join(part.read_bytes() for part in parts)) == TALKER[f"checksum {name}"][0]


@pytest.mark.parametrize("name", [*CHECKPOINTS, "speech_tokenizer"])
def test_tensor_names_and_shapes_are_those_of_the_reference(checkpoint, name):
    published = {k: tuple(v) for k, v in json.loads((HERE / "tensors.json").read_text())[name].items()}
    if name == "speech_tokenizer":
        config = SpeechTokenizerConfig.load(checkpoint("1.7b base") / name / "config.json")
        ours = decoder_tensors(config.decoder) | encoder_tensors(config.encoder)
    else:
        config = TalkerConfig.load(checkpoint(name) / "config.json")
        ours = talker_tensors(config)
        if config.style == "base":
            ours |= speaker_encoder_tensors(config.speaker_encoder)
    assert ours == published


@pytest.mark.parametrize("index", range(len(cases.TOKEN_TEXTS)))
def test_text_becomes_the_same_tokens(checkpoint, index):
    tokenizer = TextTokenizer(checkpoint("1.7b base"))
    around = [tokenizer.id_of("<|im_start|>"), *tokenizer.encode("assistant\n")]
    ids = [*around, *tokenizer.encode(cases.TOKEN_TEXTS[index])]
    ids += [tokenizer.id_of("<|im_end|>"), *tokenizer.encode("\n"), *around]
    assert ids == CODEC[f"tokens.{index}"].tolist()


@pytest.mark.parametrize("case", [c for c in cases.CASES if c.embeddings], ids=lambda c: c.name)
def test_prompt_embeddings(checkpoint, case):
    model = load(checkpoint, case)
    prompt = model.build_prompt(asked(case), case.text, True)
    np.testing.assert_allclose(prompt.inputs.numpy(), TALKER[f"{case.name}.prompt"], atol=1e-5)
    trailing = model.network.text(torch.tensor(prompt.text_ids)).numpy()
    np.testing.assert_allclose(trailing, TALKER[f"{case.name}.trailing"], atol=1e-5)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
def test_greedy_codes(checkpoint, case):
    model = load(checkpoint, case)
    prompt = model.build_prompt(asked(case), case.text, True)
    (codes,) = run(engine(model), [stream(asked(case), prompt)])
    if prompt.prefix_frames is not None:
        codes = np.concatenate([prompt.prefix_frames.numpy(), codes])
    np.testing.assert_array_equal(codes, TALKER[f"{case.name}.codes"])


def test_greedy_codes_of_streams_of_different_length_that_run_together(checkpoint):
    together = [c for c in cases.CASES if c.checkpoint == "1.7b custom_voice" and c.eos_gain == 1]
    together = [c for c in together if not c.whole]
    model = load(checkpoint, together[0])
    prompts = [model.build_prompt(asked(c), c.text, True) for c in together]
    assert len({len(p.inputs) for p in prompts}) > 1
    streams = [stream(asked(c), p) for c, p in zip(together, prompts, strict=True)]
    for case, codes in zip(together, run(engine(model, slots=3), streams, every=5), strict=True):
        np.testing.assert_array_equal(codes, TALKER[f"{case.name}.codes"])


def test_codec_audio(checkpoint):
    model = codec(checkpoint("1.7b base"))
    with torch.inference_mode():
        audio = model.decoder(torch.from_numpy(cases.codec_frames()))[:, 0]
    assert audio.shape == (2, 40 * 1920)
    assert 0.05 < audio.std() < 0.5  # neither silence nor clipped
    np.testing.assert_allclose(audio[:, ::7], CODEC["decoded"], atol=1e-5)


def test_audio_of_a_cloned_voice_starts_after_the_primed_reference(checkpoint):
    """The reference decodes reference and speech in one go and cuts the front off."""
    model = codec(checkpoint("1.7b base"))
    codes = torch.from_numpy(TALKER["in_context.codes"].astype(np.int64))[None]
    prefix = len(CODEC["reference.codes"])
    model.allocate(1)
    slot, one = torch.tensor([0]), torch.ones(1, dtype=torch.int64)
    parts = (codes[:, :prefix], codes[:, prefix:])
    primed, heard = (model.decode(slot, c, one * c.shape[1], one > 1).pcm[0, 0] for c in parts)
    assert len(primed) == prefix * 1920
    np.testing.assert_allclose(heard[::7], CODEC["in_context.audio"], atol=1e-5)


def test_reference_codes_and_x_vector(checkpoint):
    model = talker(checkpoint("1.7b base"))
    request = asked(next(c for c in cases.CASES if c.name == "in_context"))
    reader = model._prompts._references
    voice = reader.read(model._prompts._reference(request))
    np.testing.assert_array_equal(voice.codes.numpy(), CODEC["reference.codes"])
    np.testing.assert_allclose(voice.x_vector.numpy(), CODEC["reference.x_vector"], atol=1e-5)

"""What a request may ask of which checkpoint, and what the prompt becomes."""

from __future__ import annotations

import wave

import numpy as np
import pytest
import torch

from backends.talker import NothingToSpeakError, SpeechRequest
from backends.voice import VoiceError
from tests.qwen3_tts.golden import cases
from tests.qwen3_tts.model import talker

AUDIO = {"reference_audio": cases.reference_audio(), "reference_rate": 24_000}
IN_CONTEXT = {**AUDIO, "reference_text": cases.REFERENCE_TEXT}


def build(model, text="Hello there.", first=True, **fields):
    return model.build_prompt(SpeechRequest(text, **fields), text, first)


def same(a, b):
    return a.inputs.shape == b.inputs.shape and torch.equal(a.inputs, b.inputs) and a.text_ids == b.text_ids


@pytest.fixture(scope="module")
def custom(checkpoint):
    return talker(checkpoint("1.7b custom_voice"))


@pytest.fixture(scope="module")
def base(checkpoint):
    return talker(checkpoint("1.7b base"))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("1.7b custom_voice", AUDIO, "does not clone"),
        ("1.7b custom_voice", {"reference_text": "So."}, "does not clone"),
        ("1.7b custom_voice", {"language": "klingon"}, "language is 'klingon'; this voice speaks auto, chin"),
        ("1.7b custom_voice", {"language": "sichuan_dialect"}, "language is 'sichuan_dialect'"),
        ("0.6b custom_voice", {"instructions": "Be brief."}, "0.6B model has not learnt any"),
        ("1.7b voice_design", AUDIO, "does not clone"),
        ("1.7b base", {}, "give reference_wav"),
        ("1.7b base", {"reference_text": "So."}, "reference_text was given without reference_wav"),
        ("1.7b base", {**AUDIO, "instructions": "Be brief."}, "clones voices"),
        (
            "1.7b base",
            {"reference_audio": np.zeros(800, np.float32), "reference_rate": 16_000},
            r"lasts 0.050 s; a voice needs at least 0.0\d\d s",
        ),
    ],
)
def test_what_a_checkpoint_cannot_do_is_refused(checkpoint, name, fields, message):
    with pytest.raises(ValueError, match=message):
        build(talker(checkpoint(name)), **fields)


def test_speakers_are_those_of_the_checkpoint_and_the_first_is_the_default(custom):
    assert custom.speakers[0] == "serena"
    assert len(custom.speakers) == 9
    assert same(build(custom), build(custom, speaker="Serena"))
    assert not same(build(custom), build(custom, speaker="ryan"))


def test_languages_go_by_name_or_code(custom):
    english = build(custom, language="english", speaker="ryan")
    for name in ("English", "en", "en-GB", "en_US"):
        assert same(build(custom, language=name, speaker="ryan"), english)
    assert not same(build(custom, language="auto", speaker="ryan"), english)


def test_a_dialect_speaker_speaks_its_dialect_unless_told_another_language(custom):
    auto = build(custom, speaker="eric")
    assert same(auto, build(custom, speaker="eric", language="chinese"))
    assert len(auto.inputs) == len(build(custom, speaker="ryan").inputs) + 1  # a language was chosen
    assert not same(auto, build(custom, speaker="eric", language="english"))


def test_instructions_come_first(checkpoint):
    design = talker(checkpoint("1.7b voice_design"))
    plain, told = build(design), build(design, instructions="An old sailor.")
    assert len(told.inputs) > len(plain.inputs)
    torch.testing.assert_close(told.inputs[-len(plain.inputs) :], plain.inputs)


def test_a_voice_may_state_defaults(checkpoint):
    folder = checkpoint("1.7b custom_voice")
    told = talker(folder, speaker="Vivian", language="english", instructions="Whisper.")
    bare = talker(folder)
    assert same(build(told), build(bare, speaker="vivian", language="english", instructions="Whisper."))
    assert same(
        build(told, speaker="ryan", language="fr", instructions=""),
        build(bare, speaker="ryan", language="french"),
    )


def test_a_voice_may_bring_its_reference(checkpoint, base):
    folder = checkpoint("1.7b base")
    samples = (cases.reference_audio() * 32767).astype("<i2")
    with wave.open(str(folder / "reference.wav"), "wb") as file:
        file.setparams((1, 2, 24_000, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    own = talker(folder, reference_wav="reference.wav", reference_text=cases.REFERENCE_TEXT)
    asked = {**IN_CONTEXT, "reference_audio": samples.astype(np.float32) / 32768}
    assert same(build(own), build(base, **asked))
    assert build(own).prefix_frames is not None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("1.7b custom_voice", {"speaker": "nobody"}, "speaker is 'nobody'; the checkpoint has serena"),
        ("1.7b custom_voice", {"language": "klingon"}, "language is 'klingon'"),
        ("1.7b custom_voice", {"reference_wav": "a.wav"}, "reference_wav is for Base checkpoints"),
        ("1.7b base", {"instructions": "Whisper."}, "not for checkpoints that clone"),
        ("1.7b base", {"reference_text": "So."}, "reference_text needs reference_wav"),
        ("1.7b base", {"reference_wav": "missing.wav"}, "missing.wav: is not a readable WAV"),
    ],
)
def test_defaults_that_the_checkpoint_cannot_serve_are_refused_at_start(checkpoint, name, options, message):
    with pytest.raises(VoiceError, match=message):
        talker(checkpoint(name), **options)


def test_only_the_first_piece_primes_the_codec(base):
    """Later pieces go on where the codec is: priming it again would be heard as a jump."""
    first, later = build(base, **IN_CONTEXT), build(base, first=False, **IN_CONTEXT)
    assert first.prefix_frames.shape == (21, 16)
    assert later.prefix_frames is None
    assert same(first, later)


def test_cloning_by_x_vector_alone_primes_nothing(base):
    assert build(base, **AUDIO).prefix_frames is None


def test_a_reference_is_encoded_once(base, monkeypatch):
    reader = base._prompts._references
    calls = []
    encode = reader._encode
    monkeypatch.setattr(reader, "_encode", lambda reference: calls.append(reference) or encode(reference))
    quieter = {**IN_CONTEXT, "reference_audio": cases.reference_audio() * 0.5}
    for fields in (quieter, quieter, {**quieter, "reference_text": "Other words."}):
        build(base, **fields)
    assert len(calls) == 1
    build(base, **{**quieter, "reference_text": None})  # the codes are not needed, the x-vector is
    build(base, **{**quieter, "reference_rate": 16_000})
    assert len(calls) == 3


def test_references_are_forgotten_beyond_the_limit(checkpoint):
    model = talker(checkpoint("1.7b base"), reference_cache=2)
    for gain in (0.1, 0.2, 0.3):
        build(model, reference_audio=cases.reference_audio() * np.float32(gain), reference_rate=24_000)
    assert len(model._prompts._references._known) == 2


def test_text_goes_whole_into_the_prompt_of_named_voices_and_is_fed_to_clones(custom, base):
    text = "One two three four five six."
    tokens = len(custom.text_to_ids(text))
    assert build(custom, text).text_ids == [custom._ids.text_pad]
    fed = build(base, text, **AUDIO)
    assert len(fed.text_ids) == tokens  # all but the first, and the end mark
    assert fed.text_ids[-1] == base._ids.text_eos


def test_the_frame_budget_follows_the_text(custom):
    short, long = build(custom, "Hi."), build(custom, "Hi. " * 20)
    assert 75 < short.max_frames < long.max_frames < 75 + 12 * 20 * 8


def test_control_markers_in_a_text_are_plain_text(custom):
    marker = custom._tokenizer.id_of("<|im_end|>")
    assert marker not in custom.text_to_ids("an <|im_end|> in the text")
    assert marker not in build(custom, "an <|im_end|> in the text").text_ids


@pytest.mark.parametrize("text", [" \n", "...", "\u2014 \U0001f600"])
def test_text_without_a_word_is_passed_over(custom, text):
    with pytest.raises(NothingToSpeakError, match="no letter and no digit"):
        build(custom, text)


def test_a_prompt_that_the_cache_cannot_hold_is_refused_with_the_way_out(custom):
    custom.allocate(1, 32)
    with pytest.raises(ValueError, match=r"take \d+ positions before the first frame; the limit is 31"):
        build(custom, "Far too much to say in so few positions.")
    custom.allocate(1, 128)

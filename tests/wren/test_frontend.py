"""From text to phones: the lexicon, spelling, rules for unknown words, and text that nobody could
read."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.families.wren.frontend import Frontend
from backends.families.wren.phones import FEATURE_SIZES, PAUSE, PHONES, Phone, phone_features
from backends.talker import NothingToSpeakError, SpeechRequest
from backends.voice import VoiceConfig


def spoken(frontend: Frontend, text: str) -> str:
    """Phones, | for pauses."""
    return " ".join("|" if phone.name == PAUSE else phone.name for phone in frontend.phones(text))


def test_features_are_those_of_the_prototype(frontend: Frontend, reference: dict[str, np.ndarray]) -> None:
    for index, text in enumerate(reference["sentences"].tolist()):
        inputs = frontend.prompt(SpeechRequest(text), text).inputs
        assert inputs.dtype == torch.int64
        assert np.array_equal(inputs.numpy(), reference[f"phones_{index}"]), text


@pytest.mark.parametrize(
    ("text", "phones"),
    [
        ("Hello.", "| hh ax l ow |"),
        ("the cat, the owl", "| dh ax k ae t | dh iy aw l |"),
        ("don't", "| d ow n t |"),
        ("Anna's boss's cats", "| ae n ax z b aa s ax z k ae t s |"),
        # Capitals: spelled if short or without a vowel, else read; plural and possessive; a text in
        # capitals.
        ("HTTP", "| ey ch t iy t iy p iy |"),
        ("the FBI's PCs", "| dh ax eh f b iy ay z p iy s iy z |"),
        ("NASA", "| n ae s ax |"),
        ("THE CAT SAT", "| dh ax k ae t s ae t |"),
        # Single letters; the article.
        ("A plan", "| ax p l ae n |"),
        ("plan A", "| p l ae n ey |"),
        ("e", "| iy |"),
        # Words joined by capitals.
        ("HotDog", "| hh aa t d ao g |"),
        ("YouTube", "| y uw t uw b |"),
        # Repeated punctuation is one pause, at the beginning none.
        ("?! yes !!!", "| y eh s |"),
        ("so ... well", "| s ow | w eh l |"),
        # Writing that cannot be read is passed over.
        ("hello 😀 мир", "| hh ax l ow |"),
    ],
)
def test_phones(frontend: Frontend, text: str, phones: str) -> None:
    assert spoken(frontend, text) == phones


def test_pauses_tell_how_a_phrase_ends(frontend: Frontend) -> None:
    ends = [phone.phrase_end for phone in frontend.phones("Oh: no, yes; why? go! so") if phone.name == PAUSE]
    assert ends == ["", ",", ",", ",", "?", "!", "."]


def test_feature_rows() -> None:
    phones = [
        Phone(PAUSE),
        Phone("hh", word_start=True),
        Phone("ay", stressed=True),
        Phone(PAUSE, phrase_end="?"),
        *[Phone("s", word_start=place == 0) for place in range(20)],
        Phone(PAUSE, phrase_end="!"),
    ]
    rows = phone_features(phones)
    assert rows.shape == (25, len(FEATURE_SIZES))
    assert rows[0].tolist() == [PHONES.index("pau"), 0, 0, 0, 0, 0]
    assert rows[1].tolist() == [PHONES.index("hh"), 0, 1, 3, 1, 2]
    assert rows[2].tolist() == [PHONES.index("ay"), 1, 0, 3, 2, 1]
    # The end of a phrase is told to its last 14 phones only; distances stop at 15.
    assert rows[4:24, 3].tolist() == [0] * 6 + [4] * 14
    assert rows[4:24, 4].tolist() == [*range(1, 15), *[15] * 6]
    assert rows[4:24, 5].tolist() == [*[15] * 6, *range(14, 0, -1)]
    assert rows[24].tolist() == [PHONES.index("pau"), 0, 0, 4, 0, 0]


@pytest.mark.parametrize("text", ["", " ", "...", "😀🎉", "שלום", "你好", "\u0000\u0007", "\u200b", "'"])
def test_text_without_a_word_is_refused(frontend: Frontend, text: str) -> None:
    with pytest.raises(NothingToSpeakError, match="no word that wren can speak"):
        frontend.prompt(SpeechRequest(text), text)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reference_audio", np.zeros(16000, np.float32), "leave out reference_wav"),
        ("reference_text", "hello", "leave out reference_wav and reference_text"),
        ("instructions", "whisper", "leave out the parameter instructions"),
        ("language", "de", "language is 'de'; wren speaks English only"),
    ],
)
def test_what_wren_cannot_do_is_refused(frontend: Frontend, field: str, value: object, message: str) -> None:
    request = dataclasses.replace(SpeechRequest("Hello."), **{field: value})
    with pytest.raises(ValueError, match=message):
        frontend.prompt(request, "Hello.")


@pytest.mark.parametrize("language", [None, "en", "en-US", "English", "auto"])
def test_english_has_many_names(frontend: Frontend, language: str | None) -> None:
    frontend.prompt(SpeechRequest("Hello.", language=language), "Hello.")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80) | st.text(alphabet="aZ1.,-/:@$%'& \n\u0301½", max_size=60))
def test_any_text_becomes_phones_between_pauses(frontend: Frontend, text: str) -> None:
    phones = frontend.phones(text)
    names = [phone.name for phone in phones]
    assert set(names) <= set(PHONES)
    assert names[0] == names[-1] == PAUSE
    assert (PAUSE, PAUSE) not in list(itertools.pairwise(names))
    features = phone_features(phones)
    assert (features >= 0).all()
    assert (features < torch.tensor(list(FEATURE_SIZES.values()))).all()


@pytest.mark.parametrize("unit", ["7", "x'", "1,111", "http://a.b/", "'s", "1/2-", "ﷺ", "a\u0301"])
def test_long_repetitions_are_taken_in_stride(frontend: Frontend, unit: str) -> None:
    """Twenty thousand characters; anything that is not linear in them would run into the suite's time
    limit."""
    frontend.phones(unit * (20_000 // len(unit)))


def test_letter_to_sound_rules_say_what_those_of_the_prototype_say(
    frontend: Frontend, reference: dict[str, np.ndarray]
) -> None:
    """The prototype's were compared with flite's own on 123,323 words: all equal."""
    words = reference["unknown_words"].tolist()
    assert len(words) > 30
    for word, phones in zip(words, reference["unknown_words_phones"].tolist(), strict=True):
        assert spoken(frontend, word) == f"| {phones} |", word


def test_tables_are_where_the_voice_says(voice: VoiceConfig) -> None:
    assert {path.name for path in Path(voice.checkpoint).iterdir()} >= {
        "lexicon.tsv.gz",
        "lts.txt.gz",
        "voice.safetensors",
        "NOTICE",
        "README.md",
    }

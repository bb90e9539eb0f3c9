"""From text to what the talker's prefill consumes."""

from __future__ import annotations

import re

from backends.families.wren.lexicon import Pronouncer, spell
from backends.families.wren.normalisation import normalise
from backends.families.wren.phones import PAUSE, Phone, phone_features
from backends.talker import NothingToSpeakError, Prompt, SpeechRequest

_TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|[,.;:?!]")
_PHRASE_END = {",": ",", ";": ",", ":": ",", ".": ".", "?": "?", "!": "!"}
_ACRONYM_LENGTH = 3  # words in capitals up to that long are spelled, and longer ones without a vowel
_NEVER_SPELLED = {"the", "and", "for", "you", "not"}
_FRAMES_PER_PHONE = 4  # about four times as long as the voice takes
_FRAMES_SPARE = 25


class Frontend:
    """English text to phones."""

    def __init__(self, pronounce: Pronouncer) -> None:
        self._pronounce = pronounce

    def prompt(self, request: SpeechRequest, text: str) -> Prompt:
        """A prompt whose inputs are phone features, int64 [P, 6].

        Raises ValueError if the request asks for what this voice cannot do, or the text has no word in
        it.
        """
        if request.reference_audio is not None or request.reference_text is not None:
            raise ValueError(
                "wren has one voice and cannot take another's: leave out reference_wav and reference_text"
            )
        if request.instructions is not None:
            raise ValueError("wren cannot follow instructions: leave out the parameter instructions")
        if request.language is not None and request.language.lower().split("-")[0] not in (
            "en",
            "english",
            "auto",
        ):
            raise ValueError(f"language is {request.language!r}; wren speaks English only (en)")
        phones = self.phones(text)
        if all(phone.name == PAUSE for phone in phones):
            raise NothingToSpeakError(
                "the text has no word that wren could speak; it reads letters a-z, digits and common signs"
            )
        speed = request.sampling.extra.get("speed", 1.0)
        budget = _FRAMES_SPARE + int(_FRAMES_PER_PHONE * len(phones) / min(speed, 1.0))
        return Prompt(inputs=phone_features(phones), max_frames=budget)

    def phones(self, text: str) -> list[Phone]:
        """Phones of the text, between pauses."""
        tokens = _TOKEN.findall(normalise(text))
        phones = [Phone(PAUSE)]
        for index, token in enumerate(tokens):
            if token in _PHRASE_END:
                if phones[-1].name != PAUSE:
                    phones.append(Phone(PAUSE, phrase_end=_PHRASE_END[token]))
                continue
            following = tokens[index + 1] if index + 1 < len(tokens) else ""
            for place, sound in enumerate(self._word(token, following)):
                stressed = sound[-1] == "1"
                phones.append(Phone(sound.rstrip("012"), stressed, word_start=place == 0))
        if phones[-1].name != PAUSE:
            phones.append(Phone(PAUSE, phrase_end="."))
        return phones

    def _word(self, token: str, following: str) -> list[str]:
        word = token.lower()
        if _is_acronym(token):
            return spell(word)
        if word == "the" and following[:1].isalpha():
            onset = self._pronounce(following.lower())
            if onset and onset[0][-1].isdigit():
                return ["dh", "iy0"]
        return self._pronounce(word)


def _is_acronym(token: str) -> bool:
    if len(token) < 2 or not token.isupper() or not token.isalpha() or token.lower() in _NEVER_SPELLED:
        return False
    return len(token) <= _ACRONYM_LENGTH or not re.search("[AEIOUY]", token)

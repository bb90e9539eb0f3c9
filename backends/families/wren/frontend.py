"""From text to what the talker's prefill consumes."""

from __future__ import annotations

import re

from backends.families.wren.lexicon import Pronouncer, plural, spell
from backends.families.wren.normalisation import normalise
from backends.families.wren.phones import PAUSE, Phone, phone_features
from backends.talker import NothingToSpeakError, Prompt, SpeechRequest

_TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|[,.;:?!]")
_PHRASE_END = {",": ",", ";": ",", ":": ",", ".": ".", "?": "?", "!": "!"}
_ACRONYM = re.compile(r"([A-Z]{2,})('?s)?")
_ACRONYM_LENGTH = 3  # words in capitals up to that long are spelled, and longer ones without a vowel
_LONGEST_SPELLED = 12  # letters; longer ones are no acronyms
_NEVER_SPELLED = {"the", "and", "for", "you", "not"}
_SPELLED_ALONE = {"e", "o"}  # single letters that the lexicon does not have
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])")  # in GitHub
_SHOUTED_WORDS = 3  # a text of that many words or more, all in capitals, is not a list of acronyms
_FRAMES_PER_PHONE = 4  # about four times as long as the voice takes
_FRAMES_SPARE = 25


class Frontend:
    """English text to phones."""

    def __init__(self, pronounce: Pronouncer) -> None:
        self._pronounce = pronounce

    def prompt(self, request: SpeechRequest, text: str) -> Prompt:
        """A prompt whose inputs are phone features, int64 [P, 6].

        Raises ValueError if the request asks for what this voice cannot do, NothingToSpeakError if the
        text has no word in it.
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
                "the text has no word that wren can speak; it reads Latin letters, digits and common signs"
            )
        speed = request.sampling.extra.get("speed", 1.0)
        budget = _FRAMES_SPARE + int(_FRAMES_PER_PHONE * len(phones) / min(speed, 1.0))
        return Prompt(inputs=phone_features(phones), max_frames=budget)

    def phones(self, text: str) -> list[Phone]:
        """Phones of the text, between pauses; a single pause if it has no word."""
        phones = [Phone(PAUSE)]
        tokens = _tokens(text)
        for index, token in enumerate(tokens):
            if token in _PHRASE_END:
                if phones[-1].name != PAUSE:
                    phones.append(Phone(PAUSE, phrase_end=_PHRASE_END[token]))
                continue
            opening = phones[-1].name == PAUSE
            following = tokens[index + 1] if index + 1 < len(tokens) else ""
            for place, sound in enumerate(self._word(token, following, opening)):
                stressed = sound[-1] == "1"
                phones.append(Phone(sound.rstrip("012"), stressed, word_start=place == 0))
        if phones[-1].name != PAUSE:
            phones.append(Phone(PAUSE, phrase_end="."))
        return phones

    def _word(self, token: str, following: str, opening: bool) -> list[str]:
        """Phones of a word. following: the next token. opening: the word begins a phrase."""
        word = token.lower()
        acronym = _ACRONYM.fullmatch(token)
        if acronym and _is_spelled(acronym[1]):
            return plural(spell(acronym[1])) if acronym[2] else spell(acronym[1])
        if word == "the" and following[:1].isalpha():
            onset = self._pronounce(following.lower())
            if onset and onset[0][-1].isdigit():
                return ["dh", "iy0"]
        if word in _SPELLED_ALONE or (token == "A" and not (opening and following[:1].isalpha())):
            return spell(word)
        if not self._pronounce.knows(word) and _JOINT.search(token):
            return [phone for part in _JOINT.split(token) for phone in self._word(part, "", opening)]
        return self._pronounce(word)


def _tokens(text: str) -> list[str]:
    """Words and punctuation of the normalised text; words in lower case if all of it is in capitals."""
    tokens: list[str] = _TOKEN.findall(normalise(text))
    words = [token for token in tokens if len(token) > 1]
    if len(words) >= _SHOUTED_WORDS and all(word.isupper() for word in words):
        return [token.lower() for token in tokens]
    return tokens


def _is_spelled(letters: str) -> bool:
    if letters.lower() in _NEVER_SPELLED:
        return False
    return len(letters) <= _ACRONYM_LENGTH or (
        len(letters) <= _LONGEST_SPELLED and not re.search("[AEIOUY]", letters)
    )

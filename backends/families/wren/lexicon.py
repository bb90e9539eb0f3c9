"""Words to phones: flite's cmulex, then spelling out, then letter-to-sound rules."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.families.wren.letter_to_sound import LetterToSound
from backends.voice import VoiceError

LETTERS = {
    "a": "ey1",
    "b": "b iy1",
    "c": "s iy1",
    "d": "d iy1",
    "e": "iy1",
    "f": "eh1 f",
    "g": "jh iy1",
    "h": "ey1 ch",
    "i": "ay1",
    "j": "jh ey1",
    "k": "k ey1",
    "l": "eh1 l",
    "m": "eh1 m",
    "n": "eh1 n",
    "o": "ow1",
    "p": "p iy1",
    "q": "k y uw1",
    "r": "aa1 r",
    "s": "eh1 s",
    "t": "t iy1",
    "u": "y uw1",
    "v": "v iy1",
    "w": "d ah1 b ax0 l y uw0",
    "x": "eh1 k s",
    "y": "w ay1",
    "z": "z iy1",
}
_SIBILANTS = {"s", "z", "sh", "zh", "ch", "jh"}
_VOICELESS = {"p", "t", "k", "f", "th"}
_VOWELS = frozenset("aeiouy")
_SPELLED_LENGTH = 4  # words without a vowel up to that long are spelled


def load_lexicon(path: Path) -> dict[str, tuple[str, ...]]:
    """Read lexicon.tsv.gz: word, whether it is in the lexicon (else the rules say the same), phones.

    Raises VoiceError if it is missing or damaged.
    """
    words: dict[str, tuple[str, ...]] = {}
    try:
        for line in gzip.decompress(path.read_bytes()).decode("ascii").splitlines():
            word, listed, phones = line.split("\t")
            if listed == "1":
                words[word] = tuple(phones.split())
    except (OSError, EOFError, ValueError) as error:
        raise VoiceError(f"{path}: is not a lexicon ({error}); copy it again") from error
    return words


def spell(letters: str) -> list[str]:
    """Phones of the names of letters a-z, in either case."""
    return [phone for letter in letters.lower() for phone in LETTERS[letter].split()]


def plural(phones: Sequence[str]) -> list[str]:
    """The phones with the ending of plurals and possessives."""
    if phones[-1] in _SIBILANTS:
        return [*phones, "ax0", "z"]
    return [*phones, "s" if phones[-1] in _VOICELESS else "z"]


class Pronouncer:
    """Phones of any word made of a-z and apostrophes."""

    def __init__(self, lexicon: Mapping[str, tuple[str, ...]], rules: LetterToSound) -> None:
        self._lexicon = lexicon
        self._rules = rules

    def __call__(self, word: str) -> list[str]:
        """Phones with stress digits on vowels, perhaps none. word: lower case."""
        if word in self._lexicon:
            return list(self._lexicon[word])
        if word.endswith("'s") and len(word) > 2:
            phones = self._stem(word[:-2])
            return plural(phones) if phones else phones
        return self._stem(word)

    def _stem(self, word: str) -> list[str]:
        if word in self._lexicon:
            return list(self._lexicon[word])
        word = word.replace("'", "")
        if word in self._lexicon:
            return list(self._lexicon[word])
        if len(word) <= _SPELLED_LENGTH and not _VOWELS & set(word):
            return spell(word)
        return self._rules(word)

    def knows(self, word: str) -> bool:
        """Whether the lexicon has the word, lower case, itself."""
        return word in self._lexicon

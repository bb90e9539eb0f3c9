"""Letter-to-sound rules: one decision tree a letter, as flite's cmulex has them (CART, Black, Lenzo and
Pagel 1998)."""

from __future__ import annotations

import gzip
from pathlib import Path

from backends.voice import VoiceError

_LEAF = 255
_SILENT = "epsilon"


class LetterToSound:
    """Guesses the phones of words that no lexicon knows. Time grows linearly with the word.

    Each letter is judged by the letters around it, `context` to either side; the word stands between
    `#`, beyond which there are `0`. A node asks whether the letter at a place is a given one; a leaf
    names no, one or two phones.
    """

    def __init__(
        self, context: int, phones: list[str], roots: list[int], nodes: list[tuple[int, int, int, int]]
    ) -> None:
        """nodes: (place, letter code, next if equal, next if not), or (255, index into phones, -, -)
        for a leaf."""
        self._context = context
        self._leaves = [() if phone == _SILENT else tuple(phone.split("-")) for phone in phones]
        self._roots = roots
        self._nodes = nodes

    @classmethod
    def load(cls, path: Path) -> LetterToSound:
        """Read lts.txt.gz, as `training/lexicon.c` writes it. Raises VoiceError if it is missing or
        damaged."""
        try:
            lines = gzip.decompress(path.read_bytes()).decode("ascii").splitlines()
            context, _ = map(int, lines[0].split())
            nodes = [tuple(map(int, line.split())) for line in lines[5:] if line]
            if any(len(node) != 4 for node in nodes):
                raise ValueError("a node has not 4 numbers")
            return cls(context, lines[1].split()[1:], list(map(int, lines[2].split())), nodes)  # type: ignore[arg-type]
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise VoiceError(
                f"{path}: is not a table of letter-to-sound rules ({error}); copy it again"
            ) from error

    def __call__(self, word: str) -> list[str]:
        """Phones with stress digits on vowels. word: lower case; characters outside a-z are silent
        context."""
        edge = "0" * (self._context - 1)
        padded = f"{edge}#{word}#{edge}"
        phones: list[str] = []
        for index, letter in enumerate(word):
            if not "a" <= letter <= "z":
                continue
            before = padded[index : index + self._context]
            after = padded[index + self._context + 1 : index + 2 * self._context + 1]
            around = before + after + "0"
            place, value, equal, other = self._nodes[self._roots[ord(letter) - ord("a")]]
            while place != _LEAF:
                place, value, equal, other = self._nodes[equal if ord(around[place]) == value else other]
            phones += self._leaves[value]
        return phones

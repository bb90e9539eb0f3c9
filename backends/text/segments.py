"""Cutting text into pieces that are spoken one after the other as one stream."""

from __future__ import annotations

import re
from collections.abc import Iterator

# The end of a sentence: terminal punctuation, closing quotes or brackets, then white space; or a blank line.
_SENTENCE_END = re.compile(
    r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019)\]]*(?=\s|$)|[\u3002\uff01\uff1f]|\n\s*\n"
)
_CLAUSE_END = re.compile(r"[,;:\u2014\u2013)\u3001\uff0c\uff1b](?=\s|$)|[\u3001\uff0c\uff1b]")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|jr|sr|no|e\.g|i\.e|approx|dept|fig|inc|ltd|co|vol)|\b[A-Za-z])\.$",
    re.I,
)


def _sentence_ends(text: str) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(text):
        if match.group() == "." and _ABBREVIATION.search(text, max(0, match.start() - 8), match.end()):
            continue
        yield match.end()


def _cut(text: str, limit: int) -> int:
    """Where to cut a sentence longer than `limit`: after its last clause, else its last word, else hard."""
    clauses = [m.end() for m in _CLAUSE_END.finditer(text, limit // 3, limit)]
    if clauses:
        return clauses[-1]
    space = max(text.rfind(c, limit // 3, limit) for c in " \n\t")
    return space + 1 if space > 0 else limit


def split_text(text: str, limit: int) -> list[str]:
    """Pieces of at most `limit` characters, in order, together the whole text but for white space between them.

    Sentences stay whole where they fit and share a piece while it has room, so that prosody runs on; a longer
    sentence is cut after a clause, else after a word. Linear in the length of the text.
    """
    pieces: list[str] = []
    current = ""
    begin = 0
    for end in (*_sentence_ends(text), len(text)):
        sentence = text[begin:end]
        begin = end
        if len(current) + len(sentence) > limit and current.strip():
            pieces.append(current.strip())
            current = ""
        position = 0
        while len(sentence) - position > limit:
            cut = _cut(sentence[position : position + limit + 1], limit)
            pieces.append(sentence[position : position + cut].strip())
            position += cut
        current += sentence[position:]
    pieces.append(current.strip())
    return [piece for piece in pieces if piece]


class OpenText:
    """Text that arrives in parts while it is spoken: gives out whole sentences, holds back the unfinished rest."""

    def __init__(self, text: str, limit: int) -> None:
        self._limit = limit
        self._rest = text

    def append(self, text: str) -> None:
        self._rest += text

    def take(self, ended: bool) -> list[str]:
        """Pieces that are ready to be spoken; everything once the text has ended.

        A sentence counts as finished only when something follows it: "3." may become "3.5".
        """
        if ended:
            pieces, self._rest = split_text(self._rest, self._limit), ""
            return pieces
        ends = [end for end in _sentence_ends(self._rest) if end < len(self._rest)]
        cut = ends[-1] if ends else 0
        if not cut and len(self._rest) > self._limit:
            cut = _cut(self._rest[: self._limit + 1], self._limit)
        pieces, self._rest = split_text(self._rest[:cut], self._limit), self._rest[cut:]
        return pieces

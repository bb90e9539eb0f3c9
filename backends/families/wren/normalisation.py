"""Text as people write it to words that can be looked up: numbers, money, times, abbreviations."""

from __future__ import annotations

import re

_UNDER_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_ONES = _UNDER_TWENTY.split()
_TENS = ["", "", *["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]]
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_LONGEST_NUMBER = 15  # digits; longer ones are read digit by digit
_ABBREVIATIONS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "st": "saint",
    "vs": "versus",
    "etc": "et cetera",
    "prof": "professor",
    "jr": "junior",
    "e.g": "for example",
    "i.e": "that is",
}


def cardinal(number: int) -> str:
    """A number in words, below 10**15."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" {_ONES[ones]}" if ones else "")
    for value, name in _SCALES:
        if number >= value:
            count, rest = divmod(number, value)
            return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")
    raise AssertionError(number)


def ordinal(number: int) -> str:
    """first, second, ..."""
    *words, last = cardinal(number).split()
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return " ".join([*words, last])


def year(number: int) -> str:
    """A year from 1100 to 2099: nineteen ninety eight, two thousand five, twenty twenty four."""
    century, rest = divmod(number, 100)
    if number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def digits(text: str) -> str:
    """Digit by digit."""
    return " ".join(_ONES[int(digit)] for digit in text)


def normalise(text: str) -> str:
    """Words, apostrophes and the punctuation , . ; : ? !"""
    for old, new in (("’", "'"), ("‘", "'"), ("“", '"'), ("”", '"'), ("—", ", "), ("–", "-"), ("…", ".")):
        text = text.replace(old, new)
    text = re.sub(
        r"\b(mr|mrs|dr|st|vs|etc|prof|jr|e\.g|i\.e)\.",
        lambda m: _ABBREVIATIONS[m[1].lower()],
        text,
        flags=re.I,
    )
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(
        r"\$(\d+)\.(\d\d)\b", lambda m: f"{cardinal(int(m[1]))} dollars and {cardinal(int(m[2]))} cents", text
    )
    text = re.sub(r"\$(\d+)", lambda m: f"{cardinal(int(m[1]))} dollar{'' if m[1] == '1' else 's'}", text)
    text = re.sub(r"(\d+)%", r"\1 percent", text)
    for symbol, word in (("&", "and"), ("@", "at"), ("+", "plus"), ("=", "equals"), ("/", "slash")):
        text = text.replace(symbol, f" {word} ")
    text = re.sub(r"\b(\d{1,2}):(\d\d)\b", lambda m: _clock(int(m[1]), int(m[2])), text)
    text = re.sub(r"\b(\d+)(st|nd|rd|th)\b", lambda m: ordinal(int(m[1])), text)
    text = re.sub(r"\b(1[1-9]\d\d|20\d\d)\b", lambda m: year(int(m[1])), text)
    text = re.sub(r"(\d+)\.(\d+)", lambda m: f"{cardinal(int(m[1]))} point {digits(m[2])}", text)
    text = re.sub(r"(?<![\w])-(\d+)", r"minus \1", text)
    return re.sub(r"\d+", lambda m: f" {_number(m[0])} ", text)


def _number(text: str) -> str:
    return cardinal(int(text)) if len(text) <= _LONGEST_NUMBER else digits(text)


def _clock(hour: int, minute: int) -> str:
    if minute == 0:
        return f"{cardinal(hour)} o'clock"
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"

"""Numbers in words."""

from __future__ import annotations

_UNDER_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_ONES = _UNDER_TWENTY.split()
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
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


def cardinal(number: int) -> str:
    """A number in words; 0 <= number < 10**15."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" {_ONES[ones]}" if ones else "")
    value, name = next((value, name) for value, name in _SCALES if number >= value)
    count, rest = divmod(number, value)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """first, second, ..."""
    *words, last = cardinal(number).split()
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return " ".join([*words, last])


def plural(word: str) -> str:
    """The plural of a word for a number: twenties, hundreds, sixes."""
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith("x") else "s")


def year(number: int) -> str:
    """A year from 1100 to 2099: nineteen ninety eight, two thousand five, twenty twenty four."""
    century, rest = divmod(number, 100)
    if number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def digit_by_digit(digits: str) -> str:
    """0-9 one after the other."""
    return " ".join(_ONES[int(digit)] for digit in digits)


def whole(digits: str) -> str:
    """A whole number as written: digits, perhaps grouped by commas.

    Read digit by digit if it is too long for a name or begins with a zero.
    """
    digits = digits.replace(",", "")
    if len(digits) > _LONGEST_NUMBER or (len(digits) > 1 and digits[0] == "0"):
        return digit_by_digit(digits)
    return cardinal(int(digits))


def decimal(text: str) -> str:
    """A number as written, with or without a decimal point; more than one point is a version number."""
    first, *rest = text.split(".")
    words = [whole(first)] if first else []
    if len(rest) == 1:
        return " ".join([*words, "point", digit_by_digit(rest[0])])
    return " point ".join([*words, *map(whole, rest)])

"""Text as people write it to words that can be looked up.

A list of rules, each a pattern and what it becomes, applied in order: addresses before numbers, long
forms of numbers (dates, times, money) before short ones. Every pattern that repeats a class of
characters begins where such a run begins or is bounded, so that time is linear in the length of the
text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from backends.families.wren.characters import fold
from backends.families.wren.numbers import cardinal, decimal, digit_by_digit, ordinal, plural, whole, year

Replacement = Callable[[re.Match[str]], str]

# A whole number or one with decimals, at the beginning of a run of digits.
_WHOLE = r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)"
_NUMBER = rf"{_WHOLE}(?:\.\d+)?"

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MONTH_BY_ABBREVIATION = {month[:3]: month for month in _MONTHS} | {"Sept": "September"}
_DAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
}
_ABBREVIATIONS = {
    "mr": "mister",
    "mrs": "missus",
    "ms": "miz",
    "dr": "doctor",
    "prof": "professor",
    "rev": "reverend",
    "gov": "governor",
    "sen": "senator",
    "gen": "general",
    "capt": "captain",
    "sgt": "sergeant",
    "st": "saint",
    "jr": "junior",
    "sr": "senior",
    "vs": "versus",
    "approx": "approximately",
    "dept": "department",
    "inc": "incorporated",
    "ltd": "limited",
    "corp": "corporation",
    "e.g": "for example",
    "i.e": "that is",
}
_STREETS = {"St": "street", "Ave": "avenue", "Rd": "road", "Blvd": "boulevard", "Ln": "lane"}
_BEFORE_NUMBERS = {
    "no": "number",
    "nos": "numbers",
    "fig": "figure",
    "p": "page",
    "pp": "pages",
    "vol": "volume",
}
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
_MAGNITUDES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion"}
# After a number: sign, one, many.
_UNITS = {
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "m": ("meter", "meters"),
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "µg": ("microgram", "micrograms"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "L": ("liter", "liters"),
    "mph": ("mile an hour", "miles an hour"),
    "km/h": ("kilometer an hour", "kilometers an hour"),
    "kph": ("kilometer an hour", "kilometers an hour"),
    "m/s": ("meter a second", "meters a second"),
    "°C": ("degree celsius", "degrees celsius"),
    "°F": ("degree fahrenheit", "degrees fahrenheit"),
    "°": ("degree", "degrees"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "kB": ("kilobyte", "kilobytes"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "Mbps": ("megabit a second", "megabits a second"),
    "Gbps": ("gigabit a second", "gigabits a second"),
    "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "W": ("watt", "watts"),
    "V": ("volt", "volts"),
    "mA": ("milliampere", "milliamperes"),
    "mAh": ("milliampere hour", "milliampere hours"),
    "dB": ("decibel", "decibels"),
    "fps": ("frame a second", "frames a second"),
    "rpm": ("turn a minute", "turns a minute"),
    "px": ("pixel", "pixels"),
    "ms": ("millisecond", "milliseconds"),
    "µs": ("microsecond", "microseconds"),
    "ns": ("nanosecond", "nanoseconds"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
}
_UNIT = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_SIGNS_IN_ADDRESSES = {
    ".": "dot",
    "/": "slash",
    "-": "dash",
    "_": "underscore",
    "@": "at",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "%": "percent",
    "#": "hash",
    ":": "colon",
    "~": "tilde",
    "+": "plus",
}
_SIGNS = {
    "&": "and",
    "@": "at",
    "+": "plus",
    "=": "equals",
    "/": "slash",
    "%": "percent",
    "±": "plus or minus",
    "×": "times",
    "÷": "divided by",
    "≈": "about",
    "≤": "at most",
    "≥": "at least",
    "≠": "is not",
    "<": "less than",
    ">": "greater than",
    "∞": "infinity",
    "√": "square root of",
    "π": "pi",
    "°": "degrees",
    "$": "dollars",
    "€": "euros",
    "£": "pounds",
    "§": "section",
    "→": ",",
    "^": "to the power of",
}
_TOP_LEVEL = "com|org|net|edu|gov|mil|io|ai|dev|app|info|biz|uk|de|fr|eu|ca"


def normalise(text: str) -> str:
    """Letters, apostrophes and the punctuation , . ; : ? ! between words, and signs that will not be
    spoken."""
    text = fold(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def _address(match: re.Match[str]) -> str:
    address = match["address"].rstrip(".,:;!?'\")]}")
    rest = match["address"][len(address) :]
    address = re.sub(r"^www(?=\.)", "WWW", address.rstrip("/"), flags=re.I)
    words = (f" {_SIGNS_IN_ADDRESSES[c]} " if c in _SIGNS_IN_ADDRESSES else c for c in address)
    return "".join(words) + rest


def _initials(match: re.Match[str]) -> str:
    # Groups of at most three letters, which the tokens spell out.
    letters = match[0].replace(".", "").upper()
    size = 2 if len(letters) == 4 else 3
    return " ".join(letters[i : i + size] for i in range(0, len(letters), size))


def _phone_number(match: re.Match[str]) -> str:
    plus = "plus " if match[0].startswith("+") else ""
    return plus + ", ".join(digit_by_digit(group) for group in re.findall(r"\d+", match[0]))


def _date(written: str, year_: str | int, month: int, day: int) -> str:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return written
    return f"{_MONTHS[month - 1]} {ordinal(day)}, {_year(int(year_))}"


def _year(number: int) -> str:
    return year(number) if 1100 <= number < 2100 else cardinal(number)


def _numeric_date(match: re.Match[str]) -> str:
    first, second = int(match[1]), int(match[2])
    full_year = int(match[3]) + (2000 if len(match[3]) == 2 else 0)
    month, day = (second, first) if first > 12 else (first, second)
    return _date(match[0], full_year, month, day)


def _decade(match: re.Match[str]) -> str:
    century, decade = match["century"], int(match["decade"])
    if not century:
        return plural(cardinal(decade))
    if decade == 0:
        return plural(_year(int(century) * 100))
    return f"{cardinal(int(century))} {plural(cardinal(decade))}"


def _clock(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    half = re.sub(r"[^apm]", "", (match["half"] or "").lower()).upper()
    if minute:
        words = f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    elif half:
        words = cardinal(hour)
    else:
        words = cardinal(hour) + (" hundred" if hour > 12 else " o'clock")
    if match["second"]:
        words += f" and {_count(match['second'].lstrip('0') or '0', 'second', 'seconds')}"
    begins_sentence = match[0].endswith(".") and re.match(
        r"\s+[A-Z]", match.string[match.end() : match.end() + 3]
    )
    return f"{words} {half}".rstrip() + (". " if begins_sentence else " ")


def _count(number: str, one: str, many: str) -> str:
    return f"{decimal(number)} {one if number == '1' else many}"


def _money(match: re.Match[str]) -> str:
    minus = "minus " if match["minus"] else ""
    one, many, cent, cents = _CURRENCIES[match["sign"]]
    number, magnitude = match["number"], match["magnitude"]
    if magnitude:
        magnitude = _MAGNITUDES.get(magnitude.lower(), magnitude.lower())
        return f" {minus}{decimal(number)} {magnitude} {many} "
    units, _, hundredths = number.partition(".")
    if len(hundredths) != 2:
        return f" {minus}{_count(number, one, many)} "
    parts = []
    if units.strip("0,") or not hundredths.strip("0"):
        parts.append(_count(units, one, many))
    if hundredths.strip("0"):
        parts.append(_count(hundredths.lstrip("0"), cent, cents))
    return f" {minus}{' and '.join(parts)} "


def _measure(match: re.Match[str]) -> str:
    one, many = _UNITS[match["unit"]]
    power = {"2": "square ", "3": "cubic "}.get(match["power"] or "", "")
    return f" {decimal(match['number'])} {power}{one if match['number'] == '1' else many} "


def _fraction(match: re.Match[str]) -> str:
    whole_part, top, bottom = match["whole"], int(match["top"]), int(match["bottom"])
    if not (0 < top < bottom <= 20 or (top == 1 and bottom in (100, 1000))):
        return match[0]
    if bottom == 2:
        name, names = "half", "halves"
    elif bottom == 4:
        name, names = "quarter", "quarters"
    else:
        name, names = ordinal(bottom), ordinal(bottom) + "s"
    if not whole_part:
        return f"{cardinal(top)} {name if top == 1 else names}"
    share = f"a {name}" if top == 1 else f"{cardinal(top)} {names}"
    return f"{whole(whole_part)} and {share}"


def _rule(
    pattern: str, replacement: str | Replacement, flags: int = 0
) -> tuple[re.Pattern[str], Replacement]:
    if isinstance(replacement, str):
        template = replacement
        return re.compile(pattern, flags), lambda match: match.expand(template)
    return re.compile(pattern, flags), replacement


_TIME_HALF = r"(?:\s?(?P<half>[ap]\.?m\b\.?|[AP]\.?M\b\.?))"
_RULES = [
    # Lines: a blank line ends a sentence, a list item is a phrase.
    _rule(r"(?<!\n)\n[ \n]*\n", ". "),
    _rule(r"\n *[-*+] ", ", "),
    _rule(r"\n", " "),
    # Rules of repeated signs, and dashes.
    _rule(r"([=*_~<>#|+^&%$@/\\-])\1{2,}", ", "),
    _rule(r" -{1,2} (?!\d)|--|[-=]>", ", "),
    # Addresses.
    _rule(r"(?:https?|ftp)://(?P<address>[^\s<>\"]{1,500})", _address, re.I),
    _rule(r"(?<![\w@.])(?P<address>www\.[^\s<>\"]{1,500})", _address, re.I),
    _rule(r"(?<![\w.+-])(?P<address>[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24})", _address),
    _rule(
        rf"(?<![\w@.-])(?P<address>(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:{_TOP_LEVEL})\b(?:/[^\s<>\"]{{0,500}})?)",
        _address,
    ),
    # Abbreviations.
    _rule(r"\b(e\.g|i\.e)\.,?", lambda m: _ABBREVIATIONS[m[1].lower()], re.I),
    _rule(
        rf"\b([A-Z][a-z]+|\d(?:st|nd|rd|th)) ({'|'.join(_STREETS)})\b\.(?!\s+[A-Z])",
        lambda m: f"{m[1]} {_STREETS[m[2]]}",
    ),
    _rule(
        rf"\b({'|'.join(key for key in _ABBREVIATIONS if '.' not in key)})\.",
        lambda m: _ABBREVIATIONS[m[1].lower()],
        re.I,
    ),
    _rule(r"\bvs\b", "versus"),
    _rule(r"\betc\.(?=\s+[A-Z]|\s*$)", "et cetera."),
    _rule(r"\betc\b\.?", "et cetera"),
    _rule(r"\bPh\.?D\b\.?", "PHD"),
    _rule(r"\bw/o\b", "without"),
    _rule(r"\bw/(?=[\sa-z])", "with "),
    _rule(rf"\b({'|'.join(_BEFORE_NUMBERS)})\. ?(?=\d)", lambda m: f"{_BEFORE_NUMBERS[m[1].lower()]} ", re.I),
    _rule(rf"\b({'|'.join(_MONTH_BY_ABBREVIATION)})\b\.?(?= \d)", lambda m: _MONTH_BY_ABBREVIATION[m[1]]),
    _rule(rf"\b({'|'.join(_DAYS)})\.", lambda m: _DAYS[m[1]]),
    # Times before initials, because of a.m.
    _rule(
        rf"(?<![\d:.])(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:]){_TIME_HALF}?",
        _clock,
    ),
    _rule(rf"(?<![\d:.])(?P<hour>1[0-2]|[1-9])(?P<minute>)(?P<second>){_TIME_HALF}", _clock),
    _rule(r"\b(?:[A-Za-z]\.){2,26}", _initials),
    _rule(r"\b([B-HJ-Z])\.(?= [A-Z])", r"\1"),
    # Numbers with their own grammar.
    _rule(r"(?<![\w.])(?:\+\d{1,3}[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])", _phone_number),
    _rule(r"(?<![\w.])\+\d{1,3}(?:[ .-]?\(?\d{2,7}\)?){2,6}(?![\w-])", _phone_number),
    _rule(r"(?<![\w.-])\d{3}-\d{4}(?![\w-])", _phone_number),
    _rule(r"(?<![\d-])(\d{4})-(\d\d)-(\d\d)(?![\d-])", lambda m: _date(m[0], m[1], int(m[2]), int(m[3]))),
    _rule(r"(?<![\d/])(\d{1,2})/(\d{1,2})/(\d{4}|\d\d)(?![\d/])", _numeric_date),
    _rule(r"(?<![\w.-])\d+(?:-\d+){2,12}(?![\w-])", _phone_number),
    _rule(
        rf"\b({'|'.join(_MONTHS)}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?![:.]\d)",
        lambda m: f"{m[1]} {ordinal(int(m[2]))}",
    ),
    _rule(rf"\b(\d{{1,2}}) ({'|'.join(_MONTHS)})\b", lambda m: f"the {ordinal(int(m[1]))} of {m[2]}"),
    _rule(r"\b(?P<century>1[1-9]|20)(?P<decade>\d0)(?:'s|s)\b", _decade),
    _rule(r"(?<!\w)'?(?P<century>)(?P<decade>[2-9]0)(?:'s|s)\b", _decade),
    _rule(r"(?<![\w.])(\d{1,2})'(\d{1,2})\"", lambda m: f"{cardinal(int(m[1]))} foot {cardinal(int(m[2]))}"),
    _rule(r"(?<=\d)(?:-| - )(?=[$€£¥₹]?\d)", " to "),
    _rule(r"(?<=[^\W\d_])-(?=\d)", " "),
    _rule(
        rf"(?P<minus>-)?(?:\b(?:US|A|C|NZ|HK))?(?P<sign>[{''.join(_CURRENCIES)}]) ?(?P<number>{_NUMBER})"
        r"(?: ?(?P<magnitude>(?i:thousand|million|billion|trillion)|(?:[kKMBm]|bn|mn)\b))?",
        _money,
    ),
    _rule(
        rf"(?P<minus>(?<![\w)])-)?(?P<number>{_NUMBER})"
        r" ?(?P<magnitude>(?i:thousand|million|billion|trillion))?"
        rf" ?(?P<sign>[{''.join(_CURRENCIES)}])",
        _money,
    ),
    _rule(rf"({_NUMBER}) ?%", r"\1 percent"),
    _rule(rf"({_NUMBER}) ?¢", r"\1 cents"),
    _rule(r"(?<![\w)])-(?=\.?\d)", " minus "),
    _rule(rf"(?P<number>{_NUMBER})[ -]?(?P<unit>{_UNIT})(?:\^(?P<power>[23]))?(?![\w^])", _measure),
    _rule(r"\^2(?!\d)", " squared "),
    _rule(r"\^3(?!\d)", " cubed "),
    _rule(r"(?<![\d/.,])(?:(?P<whole>\d+) )?(?P<top>\d{1,2})/(?P<bottom>\d{1,4})(?![\d/.])", _fraction),
    _rule(r"\b(24)/(7)\b", r"\1 \2"),
    _rule(rf"({_WHOLE})(?:st|nd|rd|th)\b", lambda m: ordinal(int(m[1].replace(",", "")[:15]))),
    _rule(r"#(?=\d)", "number "),
    _rule(r"#(?=\w)", "hashtag "),
    _rule(r"~(?=\d)", "about "),
    _rule(r"(?<=\d) ?[x×] ?(?=\d)", " by "),
    _rule(r"(?<=\d):(?=\d)", " to "),
    _rule(r"(?<![\d.,])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\d.])", r"\1 dot \2 dot \3 dot \4"),
    _rule(r"(?<![\d.,])(1[1-9]\d\d|20\d\d)(?![\d.,]\d|\d)", lambda m: f" {year(int(m[1]))} "),
    _rule(rf"{_WHOLE}(?:\.\d+)+|\.\d+", lambda m: f" {decimal(m[0])} "),
    _rule(_WHOLE, lambda m: f" {whole(m[0])} "),
    _rule(r"\d+", lambda m: f" {whole(m[0])} "),
    # Signs that are left.
    _rule(rf"[{re.escape(''.join(_SIGNS))}]", lambda m: f" {_SIGNS[m[0]]} "),
    _rule(r"[()\[\]{}]", ", "),
]

"""Text as people write it, in words."""

from __future__ import annotations

import pytest

from backends.families.wren.normalisation import normalise

CASES = {
    # Whole numbers.
    "221 Baker Street": "two hundred twenty one Baker Street",
    "0 and 1,000,000": "zero and one million",
    "1,250,000 requests": "one million two hundred fifty thousand requests",
    "007": "zero zero seven",
    "12345678901234567": "one two three four five six seven eight nine zero one two three four five six seven",
    "1st 2nd 3rd 22nd 113th": "first second third twenty second one hundred thirteenth",
    "the 1,000th time": "the one thousandth time",
    # Years.
    "in 1998": "in nineteen ninety eight",
    "2005, 2024, 1900, 2000": "two thousand five , twenty twenty four , nineteen hundred , two thousand",
    "1,998 people": "one thousand nine hundred ninety eight people",
    "the 1990s and '80s": "the nineteen nineties and eighties",
    "1998-2004": "nineteen ninety eight to two thousand four",
    # Decimals, negative numbers, ranges, fractions.
    "3.14 and .5": "three point one four and point five",
    "1,234.5": "one thousand two hundred thirty four point five",
    "version 2.5.1": "version two point five point one",
    "192.168.0.1": "one hundred ninety two dot one hundred sixty eight dot zero dot one",
    "-5 degrees, 3 - 2, 10-20 items": "minus five degrees, three to two , ten to twenty items",
    "(-2.5)": ", minus two point five ,",
    "1/2, 3/4, 2/3": "one half, three quarters, two thirds",
    "2 1/2 cups, 1½ cups": "two and a half cups, one and a half cups",
    "24/7": "twenty four seven",
    # Money.
    "$23.50": "twenty three dollars and fifty cents",
    "$1, $1.01, $0.99": "one dollar , one dollar and one cent , ninety nine cents",
    "-$5 or $1,234": "minus five dollars or one thousand two hundred thirty four dollars",
    "$2.5 million": "two point five million dollars",
    "£3bn, $5k": "three billion pounds , five thousand dollars",
    "€5.50, 7 €, £1.20, ¥500": (
        "five euros and fifty cents , seven euros , one pound and twenty pence , five hundred yen"
    ),
    "$10-$20": "ten dollars to twenty dollars",
    # Per cent and units.
    "15% less, 99.9 %": "fifteen percent less, ninety nine point nine percent",
    "5 km, 1 km, 10kg": "five kilometers , one kilometer , ten kilograms",
    "20°C or -4 °F": "twenty degrees celsius or minus four degrees fahrenheit",
    "70 mph, 3.5 GHz, 16 GB": "seventy miles an hour , three point five gigahertz , sixteen gigabytes",
    "100 m², 5 µg": "one hundred square meters , five micrograms",
    "6'2\" tall": "six foot two tall",
    "640x480, 3 × 4": "six hundred forty by four hundred eighty , three by four",
    # Times and dates.
    "5:30, 12:05, 9:00, 17:00": "five thirty , twelve oh five , nine o'clock , seventeen hundred",
    "5:30pm, 9 a.m., 11 PM": "five thirty PM , nine AM , eleven PM",
    "It ends at 5 p.m. Then go.": "It ends at five PM. Then go.",
    "12:34:56": "twelve thirty four and fifty six seconds",
    "won 3:1": "won three to one",
    "2024-05-03": "May third, twenty twenty four",
    "5/3/2024 and 25/12/2023": (
        "May third, twenty twenty four and December twenty fifth, twenty twenty three"
    ),
    "May 3, 2024": "May third, twenty twenty four",
    "Jan. 5 and Sept 30": "January fifth and September thirtieth",
    "the 3rd of May": "the third of May",
    "3 May": "the third of May",
    "You may 3 times": "You may three times",
    # Telephone numbers and other groups of digits.
    "555-123-4567": "five five five, one two three, four five six seven",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "+49 30 1234567": "plus four nine, three zero, one two three four five six seven",
    "555-1234": "five five five, one two three four",
    "123-45-6789": "one two three, four five, six seven eight nine",
    # Abbreviations and initials.
    "Dr. Smith and Mrs. Jones": "doctor Smith and missus Jones",
    "on Main St. near St. Louis": "on Main street near saint Louis",
    "e.g. this, i.e. that": "for example this, that is that",
    "cats, dogs, etc. They ran.": "cats, dogs, et cetera. They ran.",
    "cats vs. dogs": "cats versus dogs",
    "the U.S. and the U.K.": "the US and the UK",
    "J. K. Rowling": "J K Rowling",
    "He sat. It was no. 5.": "He sat. It was number five .",
    "p. 12, fig. 3": "page twelve , figure three",
    "w/ milk, w/o sugar": "with milk, without sugar",
    # Addresses.
    "john.smith@example.com": "john dot smith at example dot com",
    "https://www.example.com/a-b.": "WWW dot example dot com slash a dash b.",
    "Visit example.org, please": "Visit example dot org, please",
    "one end.Another": "one end.Another",
    # Signs.
    "R&D, a + b = c": "R and D, a plus b equals c",
    "#1 and #winning": "number one and hashtag winning",
    "~5, x^2, 5 > 3": "about five , x squared , five greater than three",
    "F-16, MP3, 3D": "F sixteen , MP three , three D",
    "this -- or that - works": "this, or that, works",
    "wait—what": "wait, what",
    "an aside (like this) here": "an aside , like this, here",
    "======= **bold** _it_": ", **bold** _it_",
    # Lines.
    "A title\n\nA text\nthat goes on": "A title. A text that goes on",
    "Buy:\n- milk\n- eggs": "Buy:, milk, eggs",
    # Other writing systems and invisible characters.
    "naïve café, Łódź, straße": "naive cafe, Lodz, strasse",
    "“Don’t,” she said…": '"Don\'t," she said...',
    "ﬁne ａｂｃ １２": "fine abc twelve",
    "zero\u200bwidth soft\u00adhyphen": "zerowidth softhyphen",
    "bell\u0007here": "bell here",
    "你好。ok": "你好. ok",
}


@pytest.mark.parametrize("text", CASES)
def test_text_in_words(text: str) -> None:
    assert " ".join(normalise(text).split()) == CASES[text]

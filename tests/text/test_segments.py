"""Cutting text into pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.text.segments import OpenText, split_text


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One. Two! Three?", 100, ["One. Two! Three?"]),
        ("One. Two! Three?", 9, ["One. Two!", "Three?"]),
        ("Dr. Smith met J. Jones. They left.", 24, ["Dr. Smith met J. Jones.", "They left."]),
        ('He said "stop." Then he ran.', 20, ['He said "stop."', "Then he ran."]),
        ("It costs 3.50 today. Fine.", 21, ["It costs 3.50 today.", "Fine."]),
        ("first line\n\nsecond line", 12, ["first line", "second line"]),
        ("alpha beta, gamma delta epsilon", 20, ["alpha beta,", "gamma delta epsilon"]),
        ("abcdefghij" * 3, 12, ["abcdefghijab", "cdefghijabcd", "efghij"]),
        ("今日は。明日は。", 5, ["今日は。", "明日は。"]),
        (" \n ", 20, []),
        ("", 20, []),
    ],
)
def test_pieces(text, limit, pieces):
    assert split_text(text, limit) == pieces


def squeezed(text):
    return "".join(text.split())


@settings(max_examples=100)
@given(st.text(st.sampled_from("abc .,!?\n3\u2014"), max_size=200), st.integers(8, 40))
def test_nothing_is_lost_and_no_piece_is_too_long(text, limit):
    pieces = split_text(text, limit)
    assert squeezed("".join(pieces)) == squeezed(text)
    assert all(0 < len(piece) <= limit for piece in pieces)


def test_open_text_gives_out_finished_sentences_only():
    text = OpenText("Hello there. This is 3.", 300)
    assert text.take(False) == ["Hello there."]
    text.append("5 metres. Ok")
    assert text.take(False) == ["This is 3.5 metres."]
    assert text.take(True) == ["Ok"]
    assert text.take(True) == []


@settings(max_examples=50)
@given(st.lists(st.text(st.sampled_from("ab. !"), max_size=12), max_size=12))
def test_open_text_speaks_the_same_words_however_it_arrives(parts):
    text = OpenText("", 40)
    pieces = []
    for part in parts:
        text.append(part)
        pieces += text.take(False)
    pieces += text.take(True)
    assert squeezed("".join(pieces)) == squeezed("".join(parts))

"""Text that arrives while it is spoken: held back by words, fed one token a frame, ended once."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.families.qwen3_tts.tokenizer import TextTokenizer
from backends.serving.frontend import FrontEnd, StreamText
from backends.talker import SpeechRequest
from tests.qwen3_tts.golden import cases
from tests.qwen3_tts.model import engine, request, run, stream, talker

TEXT = "Hello there, it's 3.50 today!  Two\n\nlines don't  e\u0301nd. the user's assistant"
IN_CONTEXT = {
    "reference_audio": cases.reference_audio(),
    "reference_rate": 24_000,
    "reference_text": cases.REFERENCE_TEXT,
}


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return TextTokenizer(checkpoint("1.7b base"))


@pytest.fixture(scope="module")
def custom(checkpoint):
    return talker(checkpoint("1.7b custom_voice"), text_layout="per_frame")


@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_text_cut_anywhere_gives_the_tokens_of_the_whole(tokenizer, cuts):
    held, ids, begin, turn = "", [], 0, 0
    while begin < len(TEXT):
        held += TEXT[begin : begin + cuts[turn % len(cuts)]]
        begin += cuts[turn % len(cuts)]
        turn += 1
        ready = tokenizer.settled(held)
        ids += tokenizer.encode(held[:ready])
        held = held[ready:]
    assert ids + tokenizer.encode(held) == tokenizer.encode(TEXT)


@pytest.mark.parametrize(
    ("text", "ready"), [("", 0), ("Hel", 0), ("Hello ", 5), ("Hello wor", 5), ("Hello, world", 6)]
)
def test_the_last_word_waits_for_what_follows(tokenizer, text, ready):
    assert tokenizer.settled(text) == ready


def test_where_words_have_no_spaces_only_the_end_waits(tokenizer):
    text = "他说你好世界今天天气不错"
    assert len(text) - 3 <= tokenizer.settled(text) < len(text)


def test_late_text_is_spoken_as_if_it_had_been_there(custom):
    """A slot without its next token waits; the others go on; the codes are those of the complete text."""
    text, other = "Good morning to you all.", "Never mind the rest."
    whole = [request(text, seed=3), request(other, seed=4)]
    prompts = [custom.build_prompt(r, r.text, True) for r in whole]
    expected = run(engine(custom), [stream(r, p) for r, p in zip(whole, prompts, strict=True)])

    ready = custom.text_ready(replace(whole[0], text_open=True), text[:9], True)
    opened = replace(whole[0], text=text[:ready], text_open=True)
    prompt = custom.build_prompt(opened, text[:ready], True)
    late = stream(opened, prompt, text_ended=False)
    rest = custom.text_to_ids(text[ready:])
    order = random.Random(1)
    waited = []

    def feed(step: int) -> None:
        waited.append(late.waiting_for_text)
        if rest and order.random() < 0.3:
            late.text_ids.append(rest.pop(0))
        elif not rest and step > 60:
            late.text_ended = True

    codes = run(engine(custom), [late, stream(whole[1], prompts[1])], each_step=feed)
    assert sum(waited) > 20
    np.testing.assert_array_equal(codes[0], expected[0])
    np.testing.assert_array_equal(codes[1], expected[1])


def test_text_that_ends_late_gets_its_end_mark_then_padding(custom, monkeypatch):
    """Never padding before the text has ended, and the end mark once."""
    fed = []
    embed = custom.network.embed_text
    monkeypatch.setattr(custom.network, "embed_text", lambda ids: fed.append(ids.tolist()) or embed(ids))
    opened = request("Now", text_open=True, max_frames=8)
    speech = stream(opened, custom.build_prompt(opened, "Now", True), text_ended=False)
    later = custom.text_to_ids(" and then")

    def feed(step: int) -> None:
        if step == 5:
            speech.text_ids.extend(later)
        if step == 10:
            speech.text_ended = True

    machine = engine(custom, slots=1)
    fed.clear()
    run(machine, [speech], each_step=feed)
    ids = custom._ids
    padding = [ids.text_pad] * (8 - len(later) - len(custom.text_to_ids("Now")))
    spoken = [*custom.text_to_ids("Now")[1:], *later, ids.text_eos]
    assert [row[0] for row in fed] == (spoken + [ids.text_pad] * 8)[:8]
    assert len(padding) < 8


def test_the_text_of_named_voices_is_fed_too_while_it_is_open(checkpoint):
    model = talker(checkpoint("1.7b custom_voice"))
    closed, opened = request("Hello there."), request("Hello there.", text_open=True)
    assert model.build_prompt(closed, closed.text, True).text_ids == [model._ids.text_pad]
    tokens = model.text_to_ids("Hello there.")
    assert model.build_prompt(opened, opened.text, True).text_ids == tokens[1:]


def test_in_context_cloning_starts_once_each_reference_frame_has_its_token(checkpoint):
    model = talker(checkpoint("1.7b base"))
    asked = request(text_open=True, **IN_CONTEXT)
    reference = len(model.text_to_ids(cases.REFERENCE_TEXT))
    frames = 21
    assert reference < frames
    words = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    waiting = [n for n in range(len(words)) if not model.text_ready(asked, words[:n], True)]
    first = words[: model.text_ready(asked, words[: waiting[-1] + 1], True)]
    assert waiting == list(range(len(waiting)))  # once it may start, it may start
    assert len(model.text_to_ids(first)) + reference >= frames + 1
    assert model.text_ready(asked, "abc def", False) == 3  # later pieces only wait for whole words
    prompt = model.build_prompt(asked, first, True)
    complete = model.build_prompt(request(words, **IN_CONTEXT), words, True)
    np.testing.assert_array_equal(prompt.inputs, complete.inputs)
    assert complete.text_ids[: len(prompt.text_ids)] == prompt.text_ids


def test_an_open_text_that_ends_before_its_reference_is_spoken_like_a_closed_one(checkpoint):
    model = talker(checkpoint("1.7b base"))
    opened, closed = request("Out", text_open=True, **IN_CONTEXT), request("Out", **IN_CONTEXT)
    np.testing.assert_array_equal(
        model.build_prompt(opened, "Out", True).inputs, model.build_prompt(closed, "Out", True).inputs
    )
    assert model.build_prompt(opened, "Out", True).text_ids == [model._ids.text_pad]


class Words:
    """A talker as the front end sees it: takes whole words, starts with two of them."""

    def text_ready(self, request, text, first):
        ready = text.rfind(" ") + 1
        return 0 if first and text[:ready].count(" ") < 2 else ready

    def text_to_ids(self, text):
        return [ord(c) for c in text]

    def build_prompt(self, request, text, first):
        return text


def built(appended: list[str]):
    """What the front end makes of an open text; None in `appended` is its end."""
    results = []
    front_end = FrontEnd(Words(), results.append)
    text = StreamText(SpeechRequest(""), limit=300, ended=False, fed=True)
    for part in appended:
        if part is None:
            text.end()
        else:
            text.append(part)
    while text.pieces:
        before = len(results)
        front_end.build(text, text.take())
        while len(results) == before:
            pass
        text.building = False
        text.first &= results[-1].prompt is None
    front_end.stop()
    return results


def test_the_front_end_holds_back_what_the_talker_does_not_want_yet():
    results = built(["He", "llo my ", "fri", "ends of ", "old", None])
    assert [r.prompt for r in results if r.prompt] == ["Hello my "]
    later = "".join(chr(i) for r in results for i in r.text_ids)
    assert later == "friends of old"
    assert all(r.error is None for r in results)


def test_the_end_lets_go_of_a_text_too_short_to_start():
    assert [r.prompt for r in built(["Hello", None]) if r.prompt] == ["Hello"]


def test_an_open_text_that_ends_without_a_word_is_an_error():
    assert "the text ended without a word" in str(built([" ", None])[-1].error)

"""Bad requests get an error that names field and limit, at once and as the last word; others go on."""

import time

import numpy as np
import pytest

from tests.e2e.raw import Connection, bytes_element, request, text_request, wave_input

TEXT = ("BYTES", [1, 1], bytes_element(b"Hello."))


@pytest.fixture
def raw(server):
    with Connection(server.grpc_url) as connection:
        yield connection


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (text_request(None), "target_text is missing"),
        (text_request(""), "target_text is blank"),
        (text_request(" \t\n"), "target_text is blank"),
        (text_request("\U0001f389 \u0628\u0629 \x00\x01"), "target_text"),
        (text_request("word " * 10_000), "target_text has 50000 characters; the limit is 20000"),
        (text_request(b"\xc3\x28"), "target_text is not UTF-8"),
        (text_request("Hello.", {"voice": "nobody"}), "voice is 'nobody'; this server speaks wren"),
        (
            text_request("Hello.", {"temperature": float("nan")}),
            "temperature is nan; give a number from 0 to 5",
        ),
        (text_request("Hello.", {"speed": 100}), "speed is 100; give a number from 0.5 to 2"),
        (text_request("Hello.", {"seed": -3}), "seed is -3"),
        (text_request("Hello.", {"codec_chunk_ramp": "3,9"}), "codec_chunk_ramp"),
        (text_request("Hello.", {"codec_chunk_frames": 10**12}), "codec_chunk_frames"),
        (text_request("Hello.", {"tempo": 1}), "unknown request parameter 'tempo'"),
        (text_request("Hello.", {"op": "ping"}), "op goes to model talker"),
        (text_request("Hello.", model="talker"), "speech is asked of model tts"),
        (text_request("Hello.", {"op": "cancel", "stream_id": "x"}, model="talker"), "no open stream"),
        (text_request("Hello.", reference_wav=wave_input(np.zeros(0))), "reference_wav is empty"),
        (text_request("Hello.", reference_wav=wave_input(np.full(9, np.nan))), "NaN"),
        (text_request("Hello.", reference_wav=wave_input(np.zeros(16_000))), "reference"),
        (text_request("Hello.", {"language": "Klingon"}), "language"),
        (request("tts", {"target_text": ("BYTES", [1, 2], bytes_element(b"a") * 2)}), "target_text"),
        (request("tts", {"target_text": ("INT32", [1, 1], b"\x00" * 4)}), "target_text"),
        (request("tts", {"target_text": TEXT, "bogus": TEXT}), "bogus"),
        (request("nobody", {"target_text": TEXT}), "nobody"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_told_what_is_wrong(raw, message, told):
    began = time.monotonic()
    error = raw.error(message)
    assert told in error
    assert time.monotonic() - began < 5


def test_a_bad_request_does_not_touch_the_others(raw, client):
    with client.stream("A sentence that goes on while another request is refused.", seed=2) as stream:
        chunks = [next(stream)]
        assert "blank" in raw.error(text_request(" "))
        chunks += list(stream)
    assert chunks[-1].finish_reason == "stop"
    alone = client.say("A sentence that goes on while another request is refused.", seed=2)
    assert sum(chunk.frames for chunk in chunks) == sum(chunk.frames for chunk in alone.chunks)


@pytest.mark.parametrize(
    "text",
    [
        "Zalgo t\u0335\u0321e\u0336\u0322x\u0337t and \u202eright to left\u202c, done.",
        "a" * 3_000,
        "9" * 500 + ".",
        "?!?!?!?! " * 50 + "yes.",
        "One\u2028two\x0bthree\x1f four.",
        "$1,234,567.89 at 5:30 on 2026-11-30, e.g. 50% of \u20ac3.",
    ],
    ids=["combining marks", "one long word", "digits", "punctuation", "separators", "numbers"],
)
def test_odd_but_speakable_text_is_spoken(raw, text):
    assert raw.samples(text_request(text, {"max_seconds": 2.0})) > 0

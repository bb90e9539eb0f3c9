"""What goes over the wire: tensors and parameters of a request, and what is refused before it is sent."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from client.errors import InvalidArgument
from client.protocol import TextFeed
from client.request import control_request, speech_request
from client.wav import WavWriter
from tests.client.scripted_server import parameter, text_of


def request(text: str = "hello", **options: Any) -> pb.ModelInferRequest:
    return speech_request("tts", "stream-1", text, options)


def tensor(message: pb.ModelInferRequest, name: str) -> tuple[str, list[int], bytes]:
    position = [each.name for each in message.inputs].index(name)
    each = message.inputs[position]
    return each.datatype, list(each.shape), message.raw_input_contents[position]


class TestSpeechRequest:
    def test_text_is_one_bytes_element_behind_a_batch_dimension(self) -> None:
        message = request("Grüße, 世界 👋")
        assert tensor(message, "target_text")[:2] == ("BYTES", [1, 1])
        assert text_of(message) == "Grüße, 世界 👋"
        assert tensor(message, "target_text")[2][:4] == struct.pack("<I", len("Grüße, 世界 👋".encode()))

    def test_what_is_not_asked_for_is_not_sent(self) -> None:
        message = request(voice=None, seed=None, reference_audio=None)
        assert [each.name for each in message.inputs] == ["target_text"]
        assert set(message.parameters) == {"stream_id", "triton_enable_empty_final_response"}
        assert (message.model_name, message.id) == ("tts", "stream-1")
        assert parameter(message, "triton_enable_empty_final_response") is True

    @pytest.mark.parametrize(
        ("name", "value", "sent"),
        [
            ("voice", "wren", "wren"),
            ("seed", 2**63 - 1, 2**63 - 1),
            ("seed", np.int32(7), 7),
            ("temperature", 0.7, 0.7),
            ("temperature", 1, 1.0),
            ("top_k", 50, 50),
            ("top_p", np.float32(0.5), 0.5),
            ("repetition_penalty", 1.1, 1.1),
            ("max_seconds", 30, 30.0),
            ("language", "en", "en"),
            ("instructions", "whisper", "whisper"),
            ("speed", 1.25, 1.25),
            ("codec_chunk_ramp", [2, 4, 8, 15], "2,4,8,15"),
            ("codec_chunk_ramp", "2,4,8", "2,4,8"),
            ("codec_chunk_frames", 15, 15),
            ("initial_codec_chunk_frames", 0, 0),
            ("codec_chunk_adaptive", False, False),
        ],
    )
    def test_options_become_parameters_of_one_type(self, name: str, value: Any, sent: Any) -> None:
        value_sent = parameter(request(**{name: value}), name)
        assert value_sent == sent
        assert type(value_sent) is type(sent)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("voice", 3),
            ("seed", 1.5),
            ("seed", True),
            ("seed", "7"),
            ("seed", 2**63),
            ("temperature", "hot"),
            ("temperature", True),
            ("codec_chunk_ramp", [2, 4.5]),
            ("codec_chunk_ramp", 15),
            ("codec_chunk_adaptive", 1),
            ("instructions", "lone \ud800 surrogate"),
        ],
    )
    def test_what_cannot_be_sent_is_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidArgument, match=name):
            request(**{name: value})

    def test_limits_are_left_to_the_server(self) -> None:
        assert parameter(request(temperature=-5), "temperature") == -5.0

    def test_an_option_that_does_not_exist_is_a_type_error(self) -> None:
        with pytest.raises(TypeError, match="unknown option tempature; there are voice, seed"):
            request(tempature=1)

    def test_further_parameters_pass_through(self) -> None:
        message = request(parameters={"style": "calm", "depth": 3, "x": 0.5, "on": True})
        assert [parameter(message, name) for name in ("style", "depth", "x", "on")] == ["calm", 3, 0.5, True]
        with pytest.raises(InvalidArgument, match="style is list"):
            request(parameters={"style": []})

    @pytest.mark.parametrize("text", ["lone \udfff", b"bytes", None])
    def test_text_must_be_encodable_text(self, text: Any) -> None:
        with pytest.raises(InvalidArgument, match="target_text"):
            request(text)

    def test_text_open_says_that_more_will_come(self) -> None:
        message = speech_request("tts", "s", "a", {}, text_open=True)
        assert parameter(message, "text_open") is True


class TestReference:
    def test_samples(self) -> None:
        message = request(
            reference_audio=np.array([0.5, -0.25]), reference_sample_rate=24_000, reference_text="hi"
        )
        assert tensor(message, "reference_wav") == ("FP32", [1, 2], struct.pack("<2f", 0.5, -0.25))
        assert tensor(message, "reference_wav_len") == ("INT32", [1, 1], struct.pack("<i", 2))
        assert tensor(message, "reference_text") == ("BYTES", [1, 1], b"\x02\0\0\0hi")
        assert parameter(message, "reference_sample_rate") == 24_000

    def test_a_wav_file_states_its_own_rate(self, tmp_path: Path) -> None:
        with WavWriter(tmp_path / "a.wav", 22_050) as writer:
            writer.write(np.zeros(100, np.float32))
        message = request(reference_audio=tmp_path / "a.wav")
        assert tensor(message, "reference_wav")[1] == [1, 100]
        assert parameter(message, "reference_sample_rate") == 22_050
        with pytest.raises(InvalidArgument, match="reference_sample_rate"):
            request(reference_audio=tmp_path / "a.wav", reference_sample_rate=16_000)

    @pytest.mark.parametrize(
        ("audio", "message"),
        [
            (np.zeros(4, np.int16), "int16"),
            (np.zeros((2, 4)), r"shape \(2, 4\)"),
            ("/nowhere/a.wav", "cannot read reference audio /nowhere/a.wav: No such file"),
        ],
    )
    def test_what_is_no_mono_audio_is_refused(self, audio: Any, message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            request(reference_audio=audio)


class TestControlRequest:
    def test_names_operation_and_stream(self) -> None:
        message = control_request("talker", "append", "r-1", stream_id="s-1", text="more")
        assert (message.model_name, message.id) == ("talker", "r-1")
        assert (parameter(message, "op"), parameter(message, "stream_id")) == ("append", "s-1")
        assert text_of(message) == "more"

    def test_ping_needs_nothing_else(self) -> None:
        message = control_request("talker", "ping", "r-1")
        assert not message.inputs
        assert set(message.parameters) == {"op", "triton_enable_empty_final_response"}


class TestTextFeed:
    def test_blank_pieces_travel_in_front_of_the_next_words(self) -> None:
        feed = TextFeed()
        assert [feed.push(piece) for piece in ("", " ", "\n", "one", " two", " ", " three")] == [
            None, None, None, " \none", " two", None, "  three",
        ]  # fmt: skip

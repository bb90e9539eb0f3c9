"""Reading requests: what is accepted, and what each mistake is told."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from backends.frames import FrameSpec
from backends.serving.errors import ErrorCode, ServingError
from backends.serving.requests import read_control, read_speech
from backends.talker import ParameterSpec, SamplingParameters
from backends.voice import LimitConfig, VoiceConfig
from chunk_policies import ChunkSchedule

TALKER = SimpleNamespace(
    spec=FrameSpec("codes", 2, (512, 512), 16_000, 1, 1_280),
    defaults=SamplingParameters(temperature=0.7, top_k=20),
    parameters={"speed": ParameterSpec(1.0, 0.5, 2.0, "rate of speech")},
    speakers=("anna", "ben"),
    windowed=False,
)
VOICE = VoiceConfig(
    name="demo",
    family="demo",
    checkpoint=Path("."),
    source=Path("demo.yaml"),
    stream=ChunkSchedule.from_mapping({"initial_codec_chunk_frames": 1, "codec_chunk_ramp": [2, 4, 8, 15]}),
    limits=LimitConfig(max_text_chars=100, max_seconds=60.0, max_reference_seconds=2.0),
    sampling={"top_k": 30},
)


def bytes_tensor(*values):
    return np.array([list(values)], np.object_)


def speech(text=b"Hello.", parameters=None, **inputs):
    tensors = {name: value for name, value in inputs.items() if value is not None}
    if text is not None:
        tensors["target_text"] = bytes_tensor(text)
    return read_speech(tensors, parameters or {}, VOICE, TALKER)


def test_defaults_come_from_the_voice_then_the_family():
    request = speech().request
    assert request.sampling == SamplingParameters(temperature=0.7, top_k=30, extra={"speed": 1.0})
    assert request.max_frames == 750
    assert request.speaker is None and request.reference_audio is None
    assert speech().schedule is VOICE.stream


def test_a_request_may_set_everything():
    result = speech(
        "Grüße, 世界 🎉".encode(),
        {
            "voice": "anna",
            "seed": 7,
            "temperature": 0,
            "top_k": 5,
            "top_p": 0.5,
            "repetition_penalty": 1.1,
            "speed": "1.5",
            "max_seconds": 0.8,
            "language": "German",
            "instructions": "Softly.",
            "codec_chunk_ramp": "4,8",
            "stream_id": "call-1",
            "text_open": True,
            "sequence_id": 0,
            "triton_enable_empty_final_response": True,
            "reference_sample_rate": 24_000,
        },
        reference_wav=np.full((1, 100), 0.5, np.float32),
        reference_wav_len=np.array([[60]], np.int32),
        reference_text=bytes_tensor(b" a word "),
    )
    request = result.request
    assert request.text == "Grüße, 世界 🎉"
    assert (request.speaker, request.seed, request.language) == ("anna", 7, "German")
    assert request.sampling == SamplingParameters(0.0, 5, 0.5, 1.1, {"speed": 1.5})
    assert request.max_frames == 10 and request.instructions == "Softly."
    assert request.reference_audio.shape == (60,) and request.reference_rate == 24_000
    assert request.reference_text == "a word"
    assert result.schedule.ramp == (4, 8)
    assert result.stream_id == "call-1" and result.text_open


def test_requests_without_a_seed_get_different_ones():
    assert speech().request.seed != speech().request.seed


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (dict(text=None), "target_text is missing"),
        (dict(text=b" \n"), "target_text is blank"),
        (dict(text=b"x" * 101), "target_text has 101 characters; the limit is 100"),
        (dict(text=b"x" * 401), "target_text has 401 bytes; the limit is 100 characters"),
        (dict(text=b"\xff"), "target_text is not UTF-8"),
        (dict(parameters={"voice": "../etc"}), "voice is '../etc'; this server speaks demo, anna, ben"),
        (dict(parameters={"voice": 3}), "voice is 3; give a string"),
        (dict(parameters={"bogus": 1}), "unknown request parameter 'bogus'; known parameters are"),
        (dict(parameters={"seed": -1}), "seed is -1; give an integer from 0"),
        (dict(parameters={"seed": 1.5}), "seed is 1.5"),
        (dict(parameters={"seed": True}), "seed is True"),
        (dict(parameters={"temperature": float("nan")}), "temperature is nan; give a number from 0 to 5"),
        (dict(parameters={"temperature": "hot"}), "temperature is 'hot'"),
        (dict(parameters={"temperature": True}), "temperature is True"),
        (dict(parameters={"top_p": 0}), "top_p is 0"),
        (dict(parameters={"speed": 9}), "speed is 9; give a number from 0.5 to 2"),
        (dict(parameters={"max_seconds": 61}), "max_seconds is 61; give a number from 0.08 to 60"),
        (dict(parameters={"language": "x" * 65}), "language has 65 characters; the limit is 64"),
        (dict(parameters={"text_open": "maybe"}), "text_open is 'maybe'; give true or false"),
        (dict(parameters={"text_open": True}), "text_open needs stream_id"),
        (dict(parameters={"codec_chunk_ramp": "2,5"}), "5 is not a size this voice is warmed for"),
        (dict(parameters={"codec_chunk_ramp": "2,x"}), "codec_chunk_ramp"),
        (dict(reference_wav=np.zeros((1, 0), np.float32)), "reference_wav is empty"),
        (dict(reference_wav=np.array([[0, np.nan]], np.float32)), "reference_wav holds NaN"),
        (dict(reference_wav=np.zeros((1, 32_001), np.float32)), "the limit is 2 s"),
        (dict(reference_wav_len=np.array([[4]], np.int32)), "reference_wav_len was given without"),
        (
            dict(reference_wav=np.zeros((1, 3), np.float32), reference_wav_len=np.array([[4]], np.int32)),
            "reference_wav_len is [4]; give one count from 1 to 3",
        ),
        (dict(reference_text=bytes_tensor(b"a", b"b")), "reference_text has 2 elements; give exactly one"),
    ],
)
def test_mistakes_are_told(case, told):
    with pytest.raises(ServingError) as error:
        speech(**case)
    assert error.value.code is ErrorCode.INVALID_ARGUMENT
    assert told in str(error.value)


def test_every_parameter_is_named_to_who_mistypes_one():
    with pytest.raises(ServingError) as error:
        speech(parameters={"sede": 1})
    for name in ("seed", "voice", "speed", "codec_chunk_ramp", "codec_chunk_adaptive", "stream_id"):
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("parameters", "text", "told"),
    [
        ({"op": "sing"}, None, "op is 'sing'; give one of append, end, cancel, ack, ping, drain"),
        ({"op": "cancel"}, None, "op=cancel needs stream_id"),
        ({"op": "append", "stream_id": "a"}, None, "target_text is missing"),
        ({"op": "append", "stream_id": "a"}, b" ", "target_text is blank"),
        ({"op": "end", "stream_id": "a" * 129}, None, "stream_id has 129 characters; the limit is 128"),
        ({"op": "ping", "seed": 1}, None, "unknown request parameter 'seed'"),
        ({"op": "drain", "limit_seconds": -1}, None, "limit_seconds is -1"),
        ({"op": "ack", "position": 5}, None, "op=ack needs stream_id"),
        ({"op": "ack", "stream_id": "a"}, None, "op=ack needs position"),
        ({"op": "ack", "stream_id": "a", "position": -1}, None, "position is -1; give an integer from 0"),
        ({"op": "cancel", "stream_id": "a", "position": 5}, None, "unknown request parameter 'position'"),
    ],
)
def test_control_mistakes_are_told(parameters, text, told):
    tensors = {} if text is None else {"target_text": bytes_tensor(text)}
    with pytest.raises(ServingError, match=r"^INVALID_ARGUMENT: ") as error:
        read_control(tensors, parameters, VOICE)
    assert told in str(error.value)


def test_control_requests():
    append = read_control(
        {"target_text": bytes_tensor(b" and more")}, {"op": "append", "stream_id": "a"}, VOICE
    )
    assert (append.op, append.stream_id, append.text) == ("append", "a", " and more")
    assert read_control({}, {"op": "drain", "limit_seconds": 3}, VOICE).limit_seconds == 3.0
    drain = {"op": "drain", "key": "s3cret"}
    assert read_control({}, drain, VOICE, key="s3cret").op == "drain"
    for wrong in ({"op": "drain"}, drain | {"key": "guess"}, drain | {"key": "\u00e9"}):
        with pytest.raises(ServingError, match="op=drain needs the one of this server"):
            read_control({}, wrong, VOICE, key="s3cret")
    assert read_control({}, {"op": "ping"}, VOICE).stream_id == ""
    assert read_control({}, {"op": "ack", "stream_id": "a", "position": 5}, VOICE).position == 5


def test_a_flow_window_is_for_clients_that_can_acknowledge():
    window = {"flow_window_seconds": 30, "stream_id": "a"}
    assert speech(parameters=window).flow_window_seconds == 30.0
    assert speech(parameters={"stream_id": "a"}).flow_window_seconds is None
    with pytest.raises(ServingError, match="flow_window_seconds needs stream_id"):
        speech(parameters={"flow_window_seconds": 30})
    with pytest.raises(ServingError, match="flow_window_seconds is 0; give a number from 1 to 3600"):
        speech(parameters=window | {"flow_window_seconds": 0})

"""What a caller may ask for, and how it becomes a request to Triton."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as pb

from client.errors import InvalidArgument
from client.wav import read_wav
from client.wire import ParameterValue, add_array, add_bytes, encode_text, set_parameter

ReferenceAudio = npt.ArrayLike | str | os.PathLike[str]


class SpeechOptions(TypedDict, total=False):
    """Options of one request. What is left out, or None, is the server's default for the voice.

    reference_audio: path of a WAV file, or mono float samples in [-1, 1]. reference_sample_rate: of those
    samples; the server takes 16 kHz, as NVIDIA's TTS clients send, if it is left out. codec_chunk_ramp: chunk
    sizes in frames, as a list or "2,4,8,15". stream_id: the name of the stream in control requests; a random
    one is made if left out. parameters: more request parameters, passed on as they are.
    """

    voice: str | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    max_seconds: float | None
    language: str | None
    instructions: str | None
    speed: float | None
    codec_chunk_ramp: Sequence[int] | str | None
    codec_chunk_frames: int | None
    initial_codec_chunk_frames: int | None
    codec_chunk_adaptive: bool | None
    reference_audio: ReferenceAudio | None
    reference_sample_rate: int | None
    reference_text: str | None
    stream_id: str | None
    parameters: Mapping[str, ParameterValue] | None


_TEXT, _WHOLE, _REAL, _FLAG, _RAMP = "text", "whole number", "number", "true or false", "frames"

_PARAMETERS = {
    "voice": _TEXT,
    "seed": _WHOLE,
    "temperature": _REAL,
    "top_k": _WHOLE,
    "top_p": _REAL,
    "repetition_penalty": _REAL,
    "max_seconds": _REAL,
    "language": _TEXT,
    "instructions": _TEXT,
    "speed": _REAL,
    "codec_chunk_ramp": _RAMP,
    "codec_chunk_frames": _WHOLE,
    "initial_codec_chunk_frames": _WHOLE,
    "codec_chunk_adaptive": _FLAG,
}
_OTHERS = {"reference_audio", "reference_sample_rate", "reference_text", "stream_id", "parameters"}


def new_stream_id() -> str:
    return uuid.uuid4().hex


def speech_request(
    model: str,
    stream_id: str,
    text: str,
    options: Mapping[str, Any],
    *,
    text_open: bool = False,
    flow_window_seconds: float | None = None,
) -> pb.ModelInferRequest:
    """The request that starts a stream. With `flow_window_seconds` what is taken must be acknowledged.

    Raises InvalidArgument for a value that cannot be sent, TypeError for an option that does not exist.
    Limits are the server's business: only it knows the voice.
    """
    unknown = sorted(set(options) - set(_PARAMETERS) - _OTHERS)
    if unknown:
        raise TypeError(
            f"unknown option {', '.join(unknown)}; there are {', '.join([*_PARAMETERS, *sorted(_OTHERS)])}"
        )
    request = _request(model, stream_id)
    add_bytes(request, "target_text", [1, 1], encode_text("target_text", text))
    set_parameter(request, "stream_id", stream_id)
    if text_open:
        set_parameter(request, "text_open", True)
    if flow_window_seconds is not None:
        set_parameter(request, "flow_window_seconds", float(flow_window_seconds))
    for name, kind in _PARAMETERS.items():
        if options.get(name) is not None:
            set_parameter(request, name, _checked(name, kind, options[name]))
    for name, value in (options.get("parameters") or {}).items():
        set_parameter(request, name, value)
    if options.get("reference_audio") is not None:
        _add_reference(request, options["reference_audio"], options.get("reference_sample_rate"))
    if options.get("reference_text") is not None:
        add_bytes(request, "reference_text", [1, 1], encode_text("reference_text", options["reference_text"]))
    return request


def control_request(
    model: str,
    op: str,
    request_id: str,
    *,
    stream_id: str | None = None,
    text: str | None = None,
    limit_seconds: float | None = None,
    position: int | None = None,
    key: str | None = None,
) -> pb.ModelInferRequest:
    """A control request (op: append, end, cancel, ack, ping, drain) to the talker.

    text: what append adds. position: samples per channel that ack tells of. key: what drain must know.
    """
    request = _request(model, request_id)
    set_parameter(request, "op", op)
    if stream_id is not None:
        set_parameter(request, "stream_id", stream_id)
    if limit_seconds is not None:
        set_parameter(request, "limit_seconds", float(limit_seconds))
    if position is not None:
        set_parameter(request, "position", position)
    if key is not None:
        set_parameter(request, "key", key)
    if text is not None:
        add_bytes(request, "target_text", [1, 1], encode_text("target_text", text))
    return request


def _request(model: str, request_id: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id=request_id)
    set_parameter(request, "triton_enable_empty_final_response", True)
    return request


def _checked(name: str, kind: str, value: Any) -> ParameterValue:
    is_flag = isinstance(value, (bool, np.bool_))
    is_whole = isinstance(value, (int, np.integer)) and not is_flag
    if kind == _TEXT and isinstance(value, str):
        return value
    if kind == _FLAG and is_flag:
        return bool(value)
    if kind == _WHOLE and is_whole:
        return int(value)
    if kind == _REAL and (is_whole or isinstance(value, (float, np.floating))):
        return float(value)
    if kind == _RAMP and isinstance(value, str):
        return value
    if (
        kind == _RAMP
        and isinstance(value, Sequence)
        and all(isinstance(size, (int, np.integer)) for size in value)
    ):
        return ",".join(str(int(size)) for size in value)
    raise InvalidArgument(f"{name} is {value!r}, must be {kind}")


def _add_reference(request: pb.ModelInferRequest, audio: ReferenceAudio, sample_rate: int | None) -> None:
    if isinstance(audio, (str, os.PathLike)):
        if sample_rate is not None:
            raise InvalidArgument("reference_sample_rate is for samples; a WAV file states its own")
        samples, sample_rate = _read_reference(audio)
    else:
        samples = np.asarray(audio)
        if samples.dtype.kind != "f":
            raise InvalidArgument(f"reference_audio is {samples.dtype}, must be floats in [-1, 1]")
        if samples.ndim != 1:
            raise InvalidArgument(f"reference_audio has shape {samples.shape}, must be mono samples [n]")
    add_array(request, "reference_wav", "FP32", samples.astype(np.float32).reshape(1, -1))
    add_array(request, "reference_wav_len", "INT32", np.array([[samples.size]], dtype=np.int32))
    if sample_rate is not None:
        set_parameter(
            request, "reference_sample_rate", _checked("reference_sample_rate", _WHOLE, sample_rate)
        )


def _read_reference(path: str | os.PathLike[str]) -> tuple[npt.NDArray[np.float32], int]:
    try:
        return read_wav(path)
    except OSError as error:
        raise InvalidArgument(f"cannot read reference audio {path}: {error.strerror}") from error

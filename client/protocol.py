"""The rules of one stream, without any I/O: responses in, checked chunks out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from client.audio import AudioChunk
from client.errors import (
    Cancelled,
    InternalError,
    InvalidArgument,
    ProtocolError,
    carries_code,
    error_from_message,
)
from client.trace import TraceRecorder
from client.wire import float_samples, is_final, raw_outputs, single_bytes


@dataclass(frozen=True)
class ControlStatus:
    """The talker's answer to a control request; `details` is the whole JSON object."""

    ok: bool
    op: str
    active: int | None
    details: Mapping[str, Any]
    round_trip_seconds: float


class StreamDecoder:
    """Turns the responses of one request into chunks and proves that no sample is missing, repeated or out of
    order.

    The final flag may come with the last data or, as the codec holds it back, in an empty response of its
    own.
    """

    def __init__(self, stream_id: str, recorder: TraceRecorder) -> None:
        self._stream_id = stream_id
        self._recorder = recorder
        self._next_index = 0
        self._next_sample = 0
        self._format: tuple[int, int] | None = None
        self.finish_reason: str | None = None
        self.finished = False

    def decode(self, response: pb.ModelStreamInferResponse) -> AudioChunk | None:
        """The chunk in `response`, None if it holds no data. `finished` is set by the final response.

        Raises the server's error, ProtocolError if the contract is broken, and Cancelled or InternalError if
        the stream ends before its last chunk.
        """
        arrival = self._recorder.now()
        if response.error_message:
            raise error_from_message(response.error_message)
        if self.finished:
            raise ProtocolError("a response arrived after the final one")
        infer = response.infer_response
        if infer.id and infer.id != self._stream_id:
            raise ProtocolError(f"a response for request {infer.id} arrived on stream {self._stream_id}")
        final = is_final(infer)
        chunk = self._chunk(infer, arrival) if infer.outputs else None
        if chunk is None and not final:
            raise ProtocolError("a response carries neither outputs nor the final flag")
        self.finished = final
        return chunk

    def check_complete(self) -> None:
        """Called after the final response: was the stream cut off?"""
        if self.finish_reason == "error":
            raise InternalError(f"the server gave up this stream after {self._spoken()}")
        if self.finish_reason is None and self._next_index:
            raise Cancelled(
                f"the stream ended after {self._spoken()} without finish_reason: the server cancelled it"
            )

    def check_ended(self) -> None:
        """Called when the server closed the call: only allowed after the final response."""
        if not self.finished:
            raise ProtocolError(f"the server closed the call after {self._spoken()} without a final response")

    def _chunk(self, infer: pb.ModelInferResponse, arrival: float) -> AudioChunk:
        outputs = raw_outputs(infer)
        info = _json_object("chunk_info", single_bytes(outputs, "chunk_info"))
        index, first_sample = _whole(info, "index"), _whole(info, "first_sample")
        sample_rate, channels = _whole(info, "sample_rate", 1), _whole(info, "channels", 1)
        if self.finish_reason is not None:
            raise ProtocolError(
                f"chunk {index} arrived after the last one (finish_reason {self.finish_reason})"
            )
        if index != self._next_index:
            raise ProtocolError(f"chunk {index} arrived where chunk {self._next_index} was due")
        if first_sample != self._next_sample:
            fault = "hole" if first_sample > self._next_sample else "overlap"
            raise ProtocolError(
                f"{fault} before chunk {index}: starts at sample {first_sample}, due was {self._next_sample}"
            )
        self._format = self._format or (sample_rate, channels)
        if self._format != (sample_rate, channels):
            raise ProtocolError(
                f"chunk {index} has {sample_rate} Hz and {channels} channels, the stream began with "
                f"{self._format[0]} Hz and {self._format[1]}"
            )
        samples = float_samples(outputs, "waveform")
        if samples.size % channels:
            raise ProtocolError(
                f"chunk {index} has {samples.size} samples, no multiple of {channels} channels"
            )
        if not np.isfinite(samples).all():
            raise ProtocolError(f"chunk {index} holds samples that are not finite")
        if channels > 1:
            samples = samples.reshape(-1, channels)
        finish_reason = _finish_reason(info)
        chunk = AudioChunk(
            index=index,
            first_sample=first_sample,
            samples=samples,
            frames=_whole(info, "frames"),
            sample_rate=sample_rate,
            channels=channels,
            arrival_seconds=arrival,
            finish_reason=finish_reason,
        )
        self._next_index += 1
        self._next_sample += len(samples)
        self.finish_reason = finish_reason
        self._recorder.audio(arrival, samples, sample_rate, channels, finish_reason)
        return chunk

    def _spoken(self) -> str:
        if self._format is None:
            return "no audio"
        return f"{self._next_sample / self._format[0]:.2f} s of audio"


class TextFeed:
    """Text that comes bit by bit, as a language model writes it: the server refuses blank text, so a blank
    piece waits and travels in front of the next words."""

    def __init__(self) -> None:
        self._blank = ""

    def push(self, text: str) -> str | None:
        """The text to send now, None if all of it is blank so far."""
        text = self._blank + text
        if not text.strip():
            self._blank = text
            return None
        self._blank = ""
        return text


def decode_status(response: pb.ModelStreamInferResponse, round_trip_seconds: float) -> ControlStatus | None:
    """The talker's answer, None if this response holds none (an empty final).

    Raises the server's error, or InvalidArgument if the answer is "not ok".
    """
    if response.error_message:
        raise error_from_message(response.error_message)
    if not response.infer_response.outputs:
        return None
    info = _json_object("status", single_bytes(raw_outputs(response.infer_response), "status"))
    active = info.get("active")
    status = ControlStatus(
        ok=info.get("ok") is True,
        op=str(info.get("op", "")),
        active=active if isinstance(active, int) else None,
        details=info,
        round_trip_seconds=round_trip_seconds,
    )
    if not status.ok:
        raise _refusal(status)
    return status


def _refusal(status: ControlStatus) -> Exception:
    reason = status.details.get("error") or status.details.get("message") or status.details.get("reason")
    if reason is None:
        return InvalidArgument(
            f"the server refused {status.op or 'the control request'}: {dict(status.details)}"
        )
    # A refusal without a code is about the request: the server itself is well enough to answer.
    return error_from_message(str(reason)) if carries_code(str(reason)) else InvalidArgument(str(reason))


def _json_object(name: str, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"{name} is no JSON: {text[:80]!r}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is {text[:80]!r}, must be a JSON object")
    return value


def _whole(info: dict[str, Any], name: str, minimum: int = 0) -> int:
    value = info.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ProtocolError(f"chunk_info.{name} is {value!r}, must be a whole number >= {minimum}")
    return value


def _finish_reason(info: dict[str, Any]) -> str | None:
    value = info.get("finish_reason")
    if value is not None and not isinstance(value, str):
        raise ProtocolError(f"chunk_info.finish_reason is {value!r}, must be a string or null")
    return value

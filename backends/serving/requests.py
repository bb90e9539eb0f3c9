"""Reading requests: tensors and parameters of Triton in, checked dataclasses out.

Everything a client can get wrong is caught here, with an error that names field, value, limit and way out.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from backends.serving.errors import invalid
from backends.talker import SamplingParameters, SpeechRequest, Talker
from backends.voice import VoiceConfig
from chunk_policies import ChunkSchedule

OPERATIONS = ("append", "end", "cancel", "ack", "ping", "drain")
MAX_ID_CHARS = 128
MAX_INSTRUCTION_CHARS = 2_000
# A window must hold the largest chunk and what a codec may hold back.
FLOW_WINDOW_SECONDS = (1.0, 3_600.0)

# Set by Triton itself or its front ends, not by the user.
_TRITON_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)
_SCHEDULE_PARAMETERS = (
    "codec_chunk_ramp",
    "codec_chunk_frames",
    "initial_codec_chunk_frames",
    "codec_chunk_adaptive",
)


@dataclass(frozen=True)
class Speech:
    """A request to speak. stream_id: client's or Triton's id, by which control requests name the stream;
    empty if the client gave none. text_open: more text will follow by `append`. flow_window_seconds: the
    client acknowledges what it takes by `ack`, and wants to be sent no more than that ahead; None runs free.
    """

    request: SpeechRequest
    schedule: ChunkSchedule
    stream_id: str
    text_open: bool
    flow_window_seconds: float | None = None


@dataclass(frozen=True)
class Control:
    """A control request: op is one of OPERATIONS. limit_seconds: for `drain`, after which open streams fail.
    position: for `ack`, samples per channel that the client has taken."""

    op: str
    stream_id: str
    text: str
    limit_seconds: float
    position: int = 0


class Parameters:
    """Typed access to the request parameters of one request; `finish` refuses what nobody read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {k: v for k, v in values.items() if not k.startswith("triton_")}
        self._known: set[str] = set(_TRITON_PARAMETERS)

    def raw(self, name: str) -> Any:
        self._known.add(name)
        return self._values.get(name)

    def text(self, name: str, limit: int) -> str | None:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise invalid(f"{name} is {value!r}; give a string")
        if len(value) > limit:
            raise invalid(f"{name} has {len(value)} characters; the limit is {limit}")
        return value

    def number(self, name: str, minimum: float, maximum: float) -> float | None:
        value = self.raw(name)
        if value is None:
            return None
        number = _as_number(value)
        if number is None or not minimum <= number <= maximum:
            raise invalid(f"{name} is {_shown(value)}; give a number from {minimum:g} to {maximum:g}")
        return number

    def integer(self, name: str, minimum: int, maximum: int) -> int | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, str) and value.strip().lstrip("+-").isdecimal() and len(value) < 32:
            value = int(value)
        if type(value) is not int or not minimum <= value <= maximum:
            raise invalid(f"{name} is {_shown(value)}; give an integer from {minimum} to {maximum}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.raw(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if value is not None and not isinstance(value, bool):
            raise invalid(f"{name} is {_shown(value)}; give true or false")
        return value

    def finish(self) -> None:
        unknown = sorted(set(self._values) - self._known)
        if unknown:
            known = ", ".join(sorted(self._known - _TRITON_PARAMETERS))
            raise invalid(f"unknown request parameter {unknown[0][:64]!r}; known parameters are {known}")


def _shown(value: Any) -> str:
    return repr(value)[:80]


def _as_number(value: Any) -> float | None:
    """A finite float from a number or the text of one (HTTP and some gRPC clients send only strings)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def decode_text(tensor: np.ndarray | None, field: str, limit: int, required: bool) -> str:
    """The one UTF-8 string of a BYTES tensor. Raises ServingError if it is missing, blank, too long or not UTF-8."""
    if tensor is None:
        if required:
            raise invalid(f"{field} is missing; give the text as one BYTES element of shape [1, 1]")
        return ""
    if tensor.size != 1:
        raise invalid(f"{field} has {tensor.size} elements; give exactly one")
    data = tensor.reshape(-1)[0]
    if not isinstance(data, bytes):
        raise invalid(f"{field} is not a BYTES element")
    if len(data) > 4 * limit:
        raise invalid(f"{field} has {len(data)} bytes; the limit is {limit} characters")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"{field} is not UTF-8 (byte {error.start}); encode it as UTF-8") from error
    if len(text) > limit:
        raise invalid(f"{field} has {len(text)} characters; the limit is {limit}")
    if required and not text.strip():
        raise invalid(f"{field} is blank; give at least one word")
    return text


def _reference_audio(inputs: Mapping[str, np.ndarray], rate: int, limit_seconds: float) -> np.ndarray | None:
    """float32 [samples] of the reference, or None. reference_wav_len counts valid samples."""
    wav = inputs.get("reference_wav")
    length = inputs.get("reference_wav_len")
    if wav is None:
        if length is not None:
            raise invalid("reference_wav_len was given without reference_wav; give both or neither")
        return None
    samples = wav.reshape(-1)
    if length is not None:
        if length.size != 1 or not 0 <= int(length.reshape(-1)[0]) <= samples.size:
            shown = length.reshape(-1)[:4].tolist()
            raise invalid(f"reference_wav_len is {shown}; give one count from 1 to {samples.size}")
        samples = samples[: int(length.reshape(-1)[0])]
    if samples.size == 0:
        raise invalid("reference_wav is empty; give mono float32 samples or leave it out")
    if samples.size > limit_seconds * rate:
        raise invalid(
            f"reference_wav lasts {samples.size / rate:.1f} s at {rate} Hz; the limit is {limit_seconds:g} s"
        )
    if not np.isfinite(samples).all():
        raise invalid("reference_wav holds NaN or infinite samples; give finite float32 samples in -1..1")
    return samples.astype(np.float32, copy=True)


def read_control(
    inputs: Mapping[str, np.ndarray], values: Mapping[str, Any], voice: VoiceConfig, key: str = ""
) -> Control:
    """Check a control request. key: what op=drain must bring, if anything. Raises ServingError."""
    parameters = Parameters(values)
    op = parameters.text("op", 16)
    if op not in OPERATIONS:
        raise invalid(f"op is {op!r}; give one of {', '.join(OPERATIONS)}")
    stream_id = parameters.text("stream_id", MAX_ID_CHARS) or ""
    limit = parameters.number("limit_seconds", 0.0, 86_400.0) if op == "drain" else None
    if op == "drain":
        given = parameters.text("key", MAX_ID_CHARS) or ""
        if key and not secrets.compare_digest(given.encode(), key.encode()):
            raise invalid("key is wrong or missing; op=drain needs the one of this server (TRITONE_KEY)")
    position = parameters.integer("position", 0, 2**63 - 1) if op == "ack" else 0
    parameters.finish()
    if position is None:
        raise invalid("op=ack needs position, the samples per channel that were taken so far")
    if op in ("append", "end", "cancel", "ack") and not stream_id:
        raise invalid(f"op={op} needs stream_id, the id that the stream was started with")
    text = decode_text(
        inputs.get("target_text"), "target_text", voice.limits.max_text_chars, required=op == "append"
    )
    return Control(
        op=op,
        stream_id=stream_id,
        text=text,
        limit_seconds=20.0 if limit is None else limit,
        position=position,
    )


def read_speech(
    inputs: Mapping[str, np.ndarray], values: Mapping[str, Any], voice: VoiceConfig, talker: Talker
) -> Speech:
    """Check a request to speak. Raises ServingError."""
    limits = voice.limits
    parameters = Parameters(values)
    text_open = bool(parameters.flag("text_open"))
    text = decode_text(
        inputs.get("target_text"), "target_text", limits.max_text_chars, required=not text_open
    )
    max_seconds = parameters.number("max_seconds", talker.spec.seconds, limits.max_seconds)
    seed = parameters.integer("seed", 0, 2**63 - 1)
    rate = parameters.integer("reference_sample_rate", 8_000, 192_000) or 16_000
    reference_text = decode_text(
        inputs.get("reference_text"), "reference_text", limits.max_text_chars, required=False
    )
    request = SpeechRequest(
        text=text,
        speaker=_speaker(parameters, voice, talker),
        language=parameters.text("language", 64),
        instructions=parameters.text("instructions", MAX_INSTRUCTION_CHARS),
        reference_audio=_reference_audio(inputs, rate, limits.max_reference_seconds),
        reference_rate=rate,
        reference_text=reference_text.strip() or None,
        seed=secrets.randbits(63) if seed is None else seed,
        sampling=_sampling(parameters, voice, talker),
        max_frames=max(1, int((max_seconds or limits.max_seconds) / talker.spec.seconds)),
        text_open=text_open,
    )
    speech = Speech(
        request=request,
        schedule=_schedule(parameters, voice, talker),
        stream_id=parameters.text("stream_id", MAX_ID_CHARS) or "",
        text_open=text_open,
        flow_window_seconds=parameters.number("flow_window_seconds", *FLOW_WINDOW_SECONDS),
    )
    parameters.finish()
    if text_open and not speech.stream_id:
        raise invalid("text_open needs stream_id, so that op=append can name the stream")
    if speech.flow_window_seconds is not None and not speech.stream_id:
        raise invalid("flow_window_seconds needs stream_id, so that op=ack can name the stream")
    return speech


def _speaker(parameters: Parameters, voice: VoiceConfig, talker: Talker) -> str | None:
    name = parameters.text("voice", MAX_ID_CHARS)
    if name is None or name == voice.name:
        return None
    if name not in talker.speakers:
        raise invalid(f"voice is {name!r}; this server speaks {', '.join((voice.name, *talker.speakers))}")
    return name


def _sampling(parameters: Parameters, voice: VoiceConfig, talker: Talker) -> SamplingParameters:
    def pick(name: str, read: Callable[[], Any], default: Any) -> Any:
        value = read()
        return voice.sampling.get(name, default) if value is None else value

    extra = {
        name: pick(name, partial(parameters.number, name, spec.minimum, spec.maximum), spec.default)
        for name, spec in talker.parameters.items()
    }
    base = talker.defaults
    return SamplingParameters(
        temperature=pick("temperature", lambda: parameters.number("temperature", 0.0, 5.0), base.temperature),
        top_k=pick("top_k", lambda: parameters.integer("top_k", 0, 1_000_000), base.top_k),
        top_p=pick("top_p", lambda: parameters.number("top_p", 1e-6, 1.0), base.top_p),
        repetition_penalty=pick(
            "repetition_penalty",
            lambda: parameters.number("repetition_penalty", 0.1, 10.0),
            base.repetition_penalty,
        ),
        extra=extra,
    )


def _schedule(parameters: Parameters, voice: VoiceConfig, talker: Talker) -> ChunkSchedule:
    given = {name: parameters.raw(name) for name in _SCHEDULE_PARAMETERS}
    overrides = {name: value for name, value in given.items() if value is not None}
    if not overrides:
        return voice.stream
    try:
        return voice.stream.for_request(overrides, mode="window" if talker.windowed else "state")
    except ValueError as error:
        raise invalid(str(error)) from error

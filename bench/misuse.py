"""Requests that no sane client sends: drawn at random, the same for the same seed.

Each is one of: odd text, odd parameters, odd tensors, odd audio, odd control requests, requests to models
that are not meant for clients. Some are valid; that is for the server to say. What valid ones bring is short, so
that ten thousand of them fit into minutes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

MAX_SECONDS = 0.5  # of audio that a request may bring which happens to be valid

DATATYPES = (
    "BYTES",
    "FP32",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "BOOL",
    "UINT8",
    "FP64",
    "STRING",
    "",
    "x" * 99,
)
NAMES = (
    "target_text",
    "reference_wav",
    "reference_wav_len",
    "reference_text",
    "frames",
    "meta",
    "TEXT",
    "",
    "\u202e",
)
PARAMETERS = (
    "voice",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "speed",
    "max_seconds",
    "language",
    "instructions",
    "reference_sample_rate",
    "codec_chunk_ramp",
    "codec_chunk_frames",
    "initial_codec_chunk_frames",
    "codec_chunk_adaptive",
    "flow_window_seconds",
    "stream_id",
    "op",
    "position",
    "limit_seconds",
)
# Those that Triton or its front ends read themselves.
TRITON_PARAMETERS = (
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "binary_data_output",
    "triton_enable_empty_final_response",
    "triton_x",
    "",
    "a" * 300,
    "\u0645\u0631\u062d\u0628\u0627",
)
OPERATIONS = ("append", "end", "cancel", "ack", "ping", "drain", "sing", "", "\x00", "CANCEL", "cancel ")

PLAIN = "The kettle is on and the tea is ready"
PIECES = (
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u202eabc\u202c",
    "\U0001f600\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u4e16\u754c\u3002",
    "e\u0301\u0302\u0323" * 5,
    "\x00\x01\x1b[31m\x7f",
    "\ufeff\u200b\u2060",
    "\u2028\u2029\x85\x0b\x0c",
    "\ud7ff\ufffd\U0010ffff\ue000",
    "1/2/3 12:99:99 0x1F 1e308 1,2,3,4",
    "$$$ \u20ac\u00a3 5% 3.14.15 1-800-555",
    "1" * 40,
    "-0.000000001",
    "IIII MCMXCIX",
    "<speak><break time='9999s'/></speak>",
    "{{7*7}} ${jndi:x} $(id) `id` ; rm -rf / ' OR 1=1 --",
    "%s%n%x%d",
    "../../../etc/passwd",
    "http://a.b/c?d=e&f#g user@example.com",
    "a" * 60,
    "?!?!...---",
    '"\\"\\\\"',
    "No. 5 vs. Mr. e.g. U.S.A. 5th 22nd 101st",
    "\u00bd \u00b2 \u2167 \u33a5 \ufb01 \u01c4",
    "\uff11\uff12\uff13 \u0661\u0662\u0663 \u0967\u0968",
)
INTEGERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63))
REALS = (0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 2.0**63)
STRINGS = (
    "",
    " ",
    "0",
    "1",
    "0.5",
    "-1",
    "1e400",
    "nan",
    "true",
    "wren",
    "en",
    "2,4,8,15",
    "off",
    "[1,2]",
    "15,15",
    "\x00",
)


@dataclass(frozen=True)
class Misuse:
    """A request and what kind of mischief it is."""

    kind: str
    request: pb.ModelInferRequest


class Mischief:
    """An endless supply of them. open_text: some leave their text open, and then say nothing."""

    def __init__(self, seed: int, open_text: bool = True) -> None:
        self._random = random.Random(seed)
        self._open_text = open_text
        self._kinds: Sequence[tuple[str, Callable[[], pb.ModelInferRequest]]] = (
            ("text", self._odd_text),
            ("text", self._odd_text),
            ("text", self._odd_text),
            ("bytes", self._odd_bytes),
            ("parameters", self._odd_parameters),
            ("parameters", self._odd_parameters),
            ("tensors", self._odd_tensors),
            ("audio", self._odd_audio),
            ("control", self._odd_control),
            ("inner models", self._inner_model),
            ("message", self._odd_message),
        )

    def draw(self) -> Misuse:
        kind, make = self._random.choice(self._kinds)
        return Misuse(kind, make())

    # What is said.

    def text(self) -> str:
        """Any Unicode text: plain, odd pieces, repeats, random code points."""
        source = self._random
        style = source.randrange(6)
        if style == 0:
            return PLAIN[: source.randint(1, len(PLAIN))]
        if style == 1:
            return source.choice((" ", "", ". ")).join(source.choices(PIECES, k=source.randint(1, 6)))
        if style == 2:
            return source.choice(PIECES) * source.choice((1, 10, 100, 400))
        if style == 3:
            return source.choice("a1.?! \n\u0301\u202e\U0001f600") * source.choice(
                (1, 100, 5_000, 19_999, 20_001)
            )
        if style == 4:
            return "".join(chr(self._code_point()) for _ in range(source.randint(1, 60)))
        words = PLAIN.split()
        return "".join(
            source.choice(words) + source.choice((" ", "\t", ", ", "-", "\u00a0")) for _ in range(30)
        )

    def _code_point(self) -> int:
        point = self._random.randrange(self._random.choice((0x250, 0x3000, 0x110000)))
        return point if not 0xD800 <= point < 0xE000 else 0xFFFD  # a surrogate has no UTF-8 form

    def _odd_text(self) -> pb.ModelInferRequest:
        request = self._valid()
        self._set_text(request, self.text().encode())
        return request

    def _odd_bytes(self) -> pb.ModelInferRequest:
        request = self._valid()
        source = self._random
        data = source.choice(
            (
                source.randbytes(source.randint(0, 200)),
                b"\xff\xfe" + PLAIN.encode("utf-16-le"),
                b"\xed\xa0\x80",  # a lone surrogate
                b"\xc0\xaf",  # overlong
                b"\xf4\x90\x80\x80",  # above U+10FFFF
                PLAIN.encode() + b"\xc3",
                b"\x00" * source.randint(1, 1000),
                source.randbytes(1 << source.randint(10, 18)),
            )
        )
        self._set_text(request, data)
        return request

    # How it is asked.

    def _odd_parameters(self) -> pb.ModelInferRequest:
        request = self._valid()
        source = self._random
        for _ in range(source.randint(1, 4)):
            name = source.choice(PARAMETERS if source.random() < 0.85 else TRITON_PARAMETERS)
            self._set_value(request.parameters[name])
        if "op" in request.parameters and source.random() < 0.5:
            request.model_name = "talker"
        return request

    def _set_value(self, parameter: pb.InferParameter) -> None:
        source = self._random
        kind = source.randrange(14) / 3
        if kind < 1:
            parameter.bool_param = source.random() < 0.5
        elif kind < 2:
            parameter.int64_param = source.choice(INTEGERS)
        elif kind < 3:
            parameter.double_param = source.choice(REALS)
        elif kind < 4:
            parameter.string_param = source.choice((source.choice(STRINGS), self.text()[:2_500]))
        elif kind == 4:  # Triton 2.51 knows neither this one
            parameter.uint64_param = source.choice((0, 1, 2**64 - 1))
        # nor a parameter without a value

    def _odd_tensors(self) -> pb.ModelInferRequest:
        """Names, types, shapes and contents that do not fit the model or each other."""
        source = self._random
        request = self._empty(source.choice(("tts", "talker", "codec")))
        for _ in range(source.choice((0, 1, 1, 1, 2, 2, 3, 5, 40))):
            tensor = request.inputs.add(name=source.choice(NAMES), datatype=source.choice(DATATYPES))
            tensor.shape.extend(self._shape())
            self._set_contents(request, tensor)
            if source.random() < 0.1:
                name = source.choice(
                    ("shared_memory_region", "shared_memory_byte_size", "classification", "x")
                )
                self._set_value(tensor.parameters[name])
        for _ in range(source.choice((0, 0, 0, 1, 2))):
            output = request.outputs.add(
                name=source.choice(("waveform", "chunk_info", "status", "frames", "", "no"))
            )
            if source.random() < 0.3:
                name = source.choice(("shared_memory_region", "classification", "binary_data"))
                self._set_value(output.parameters[name])
        return request

    def _shape(self) -> list[int]:
        source = self._random
        pool = (
            [1, 1],
            [1],
            [],
            [1, 10],
            [1, 0],
            [0, 0],
            [-1, 1],
            [1, -1],
            [2, 1],
            [1, 1, 1],
            [2**31, 2**31],
            [2**62, 4],
        )
        return (
            list(source.choice(pool))
            if source.random() < 0.8
            else [source.choice(INTEGERS) for _ in range(3)]
        )

    def _set_contents(self, request: pb.ModelInferRequest, tensor: Any) -> None:
        source = self._random
        style = source.randrange(7)
        if style == 0:
            return  # no contents at all
        if style == 1:
            tensor.contents.bytes_contents.append(source.randbytes(8))
        elif style == 2:
            tensor.contents.fp32_contents.extend([float("nan")] * source.randint(0, 9))
        elif style == 3:
            tensor.contents.int_contents.extend([source.choice(INTEGERS[:6])] * source.randint(0, 9))
        elif style == 4:  # a length that lies
            request.raw_input_contents.append(
                struct.pack("<I", source.choice((0, 5, 2**31, 2**32 - 1))) + b"Hello"
            )
        elif style == 5:
            request.raw_input_contents.append(source.randbytes(source.choice((0, 1, 4, 40, 80, 4000))))
        else:
            request.raw_input_contents.append(struct.pack("<I", 5) + b"Hello")

    def _odd_audio(self) -> pb.ModelInferRequest:
        source = self._random
        request = self._valid()
        count = source.choice((0, 1, 2, 160, 16_000, 480_000, 500_000))
        fill = source.choice((0.0, 1.0, float("nan"), float("inf"), 1e38, 1e-45))
        samples = np.full(count, fill, np.float32)
        if count > 1 and source.random() < 0.5:
            samples[: count // 2] = np.linspace(-1, 1, count // 2, dtype=np.float32)
        shape = source.choice(([1, count], [1, count], [count, 1], [1, max(0, count - 1)]))
        request.inputs.add(name="reference_wav", datatype="FP32", shape=shape)
        request.raw_input_contents.append(samples.tobytes())
        if source.random() < 0.6:
            length = source.choice((count, 0, -1, count + 1, 2**31 - 1))
            request.inputs.add(name="reference_wav_len", datatype="INT32", shape=[1, 1])
            request.raw_input_contents.append(struct.pack("<i", length))
        if source.random() < 0.4:
            text = self.text().encode()
            request.inputs.add(name="reference_text", datatype="BYTES", shape=[1, 1])
            request.raw_input_contents.append(struct.pack("<I", len(text)) + text)
        if source.random() < 0.3:
            self._set_value(request.parameters["reference_sample_rate"])
        return request

    def _odd_control(self) -> pb.ModelInferRequest:
        source = self._random
        request = self._empty("talker")
        self._set_text(request, source.choice((b"", self.text()[:200].encode(), source.randbytes(9))))
        request.parameters["op"].string_param = source.choice(OPERATIONS)
        if source.random() < 0.8:
            request.parameters["stream_id"].string_param = source.choice(
                (self._new_id(), self.text()[:200], "x")
            )
        if source.random() < 0.5:
            self._set_value(
                request.parameters[source.choice(("position", "limit_seconds", "stream_id", "seed"))]
            )
        return request

    def _inner_model(self) -> pb.ModelInferRequest:
        """The two models behind the ensemble, called as if by it."""
        source = self._random
        if source.random() < 0.3:
            request = self._valid()
            request.model_name = "talker"
            for name in ("frames", "meta", "status")[: source.choice((1, 2, 2, 3))]:
                request.outputs.add(name=name)
            return request
        request = self._empty("codec")
        rows = source.choice((0, 1, 3))
        frames = np.array([source.choice(INTEGERS[:9]) for _ in range(8 * rows)], np.int64).astype(np.int32)
        meta = np.array([source.choice(INTEGERS) for _ in range(10)], np.int64)
        if source.random() < 0.7:
            meta[:] = [source.randrange(8), source.randrange(1 << 20), -1, rows, 8, 0, 0, 0, 0, 0]
        request.inputs.add(name="frames", datatype="INT32", shape=[1, len(frames)])
        request.raw_input_contents.append(frames.tobytes())
        request.inputs.add(name="meta", datatype="INT64", shape=[1, 10])
        request.raw_input_contents.append(meta.tobytes())
        return request

    def _odd_message(self) -> pb.ModelInferRequest:
        """Fields of the request itself."""
        source = self._random
        request = self._valid()
        if source.random() < 0.3:
            request.model_name = source.choice(("", "../tts", "tts\x00", "nobody", "TTS", "x" * 5000))
        if source.random() < 0.3:
            request.model_version = source.choice(("1", "-1", "2", "latest", "99999999999999999999"))
        request.id = source.choice(("", "x", self.text()[:3000], "id\x00"))
        if source.random() < 0.3:
            request.raw_input_contents.append(b"surplus")
        if source.random() < 0.2:
            request.inputs.add().CopyFrom(request.inputs[0])
        return request

    # The common part.

    def _empty(self, model: str) -> pb.ModelInferRequest:
        request = pb.ModelInferRequest(model_name=model, id=self._new_id())
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        return request

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _valid(self) -> pb.ModelInferRequest:
        request = self._empty("tts")
        request.parameters["max_seconds"].double_param = MAX_SECONDS
        if self._random.random() < 0.5:
            request.parameters["stream_id"].string_param = request.id
            if self._open_text and self._random.random() < 0.1:
                request.parameters["text_open"].bool_param = True
        self._set_text(request, PLAIN.encode())
        return request

    def _set_text(self, request: pb.ModelInferRequest, data: bytes) -> None:
        if not request.inputs:
            request.inputs.add(name="target_text", datatype="BYTES", shape=[1, 1])
            request.raw_input_contents.append(b"")
        request.raw_input_contents[0] = struct.pack("<I", len(data)) + data

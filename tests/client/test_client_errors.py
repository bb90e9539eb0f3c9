"""What the server or gRPC says, and the exception a program gets."""

# ruff: noqa: E501 - texts of the server, word for word

from __future__ import annotations

import grpc
import pytest

from client.errors import (
    Cancelled,
    InternalError,
    InvalidArgument,
    ServerFull,
    TTSError,
    Unavailable,
    error_from_message,
    error_from_rpc,
)

CODES = [
    ("INVALID_ARGUMENT", InvalidArgument),
    ("FULL", ServerFull),
    ("CANCELLED", Cancelled),
    ("INTERNAL", InternalError),
    ("UNAVAILABLE", Unavailable),
]
PREFIXES = [
    "",
    "in ensemble 'tts', ",
    "[request id: 7f3a] ",
    "in ensemble 'tts', [request id: 7f3a] ",
    "Failed to process the request(s) for model 'talker_0_0', message: TritonModelException: ",
]


@pytest.mark.parametrize(("code", "kind"), CODES)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_code_decides_whatever_triton_puts_before_it(
    prefix: str, code: str, kind: type[TTSError]
) -> None:
    text = f"{prefix}{code}: temperature is -1, the limit is 0; leave it out for the default"
    error = error_from_message(text)
    assert type(error) is kind
    assert error.code == code
    assert str(error) == error.message == "temperature is -1, the limit is 0; leave it out for the default"
    assert error.detail == text


def test_the_first_code_counts_so_that_quoted_text_cannot_pose_as_one() -> None:
    error = error_from_message("INVALID_ARGUMENT: voice 'FULL: x' is unknown")
    assert type(error) is InvalidArgument


def test_a_word_that_ends_like_a_code_is_none() -> None:
    assert type(error_from_message("the queue is not_FULL: odd")) is InternalError


def test_a_python_traceback_is_cut_off() -> None:
    error = error_from_message("INTERNAL: the codec failed\n\nAt:\n  /models/codec/1/model.py(31): execute\n")
    assert error.message == "the codec failed"


# Texts that a real Triton 2.51 sent, or that its source holds.
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Request for unknown model: 'tts' is not found", Unavailable),
        ("Request for unknown model: 'tts' has no available versions", Unavailable),
        ("in ensemble 'tts', Stub process 'talker_0_0' is not healthy.", Unavailable),
        ("Server is stopping, scheduler for model has stopped accepting new inference requests", Unavailable),
        ("Error when running inference: Server not ready", Unavailable),
        ("in ensemble 'tts', [request id: 9] Exceeds maximum queue size", ServerFull),
        ("[request id: 7] unexpected shape for input 'target_text' for model 'tts'. Expected [1,1], got [2]. ", InvalidArgument),
        ("in ensemble 'tts', [request id: 7] unexpected shape for input 'meta' for model 'codec'. Expected [1,10], got [1,1,10].", InternalError),
        ("[request id: 7] inference input 'target_text' data-type is 'FP32', but model 'tts' expects 'BYTES'", InvalidArgument),
        ("in ensemble 'tts', incomplete string data for inference input 'target_text', expecting string of length 255 but only 2 bytes available", InvalidArgument),
        ("[request id: 7] input byte size mismatch for input 'reference_wav_len' for model 'tts'. Expected 4, got 2", InvalidArgument),
        ("unexpected inference input 'bogus' for model 'tts'", InvalidArgument),
        ("[request id: 7] input 'target_text' already exists in request", InvalidArgument),
        ("[request id: 7] All input dimensions should be specified for input 'target_text' for model 'tts', got [-1,1]", InvalidArgument),
        ("unable to find data for input tensor 'target_text' for model 'tts' in request.", InvalidArgument),
        ("[request id: 1] expected 4 inputs but got 5 inputs for model 'tts'", InvalidArgument),
        ("Request cancelled", Cancelled),
        ("Failed to process the request(s) for model 'codec_0_0', message: RuntimeError: boom", InternalError),
        ("something nobody has seen before", InternalError),
        ("", InternalError),
    ],
)  # fmt: skip
def test_triton_s_own_messages(text: str, kind: type[TTSError]) -> None:
    error = error_from_message(text)
    assert type(error) is kind
    assert error.message


class Rpc(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", Unavailable),
        (grpc.StatusCode.UNAVAILABLE, None, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", Unavailable),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found", Unavailable),
        (grpc.StatusCode.CANCELLED, "", Cancelled),
        (grpc.StatusCode.INTERNAL, "boom", InternalError),
        (grpc.StatusCode.INVALID_ARGUMENT, "bad", InvalidArgument),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Sent message larger than max (9 vs. 8)", InvalidArgument),
        (grpc.StatusCode.UNKNOWN, "in ensemble 'tts', FULL: 64 streams run", ServerFull),
        (grpc.StatusCode.UNKNOWN, "?", Unavailable),
    ],
)  # fmt: skip
def test_grpc_status(status: grpc.StatusCode, details: str | None, kind: type[TTSError]) -> None:
    error = error_from_rpc(Rpc(status, details), "localhost:8001")
    assert type(error) is kind
    if kind is Unavailable:
        assert "localhost:8001" in error.message

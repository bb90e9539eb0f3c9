"""Typed errors, and the mapping from what the server or gRPC says to them.

The server starts every error of its own with a stable code (`INVALID_ARGUMENT:`, `FULL:`, `CANCELLED:`,
`INTERNAL:`, `UNAVAILABLE:`). Triton may put a prefix before it, such as "in ensemble 'tts', ", and has
messages of its own that carry no code; those are recognised by their wording.
"""

from __future__ import annotations

import re
from typing import ClassVar

import grpc


class TTSError(Exception):
    """Base of everything that this package raises for a failed request.

    `code` is stable and meant for programs, `message` is one line for people, `detail` is the text as it
    arrived.
    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = message if detail is None else detail


class InvalidArgument(TTSError):  # noqa: N818 - named after the server's code
    """The request is at fault: text, voice, parameter or reference audio. Sending it again will not help."""

    code = "INVALID_ARGUMENT"


class ServerFull(TTSError):  # noqa: N818
    """All slots and the queue are taken. The server refused at once; try again later."""

    code = "FULL"


class Cancelled(TTSError):  # noqa: N818
    """The stream was cancelled by somebody else, or was cut off before its last chunk."""

    code = "CANCELLED"


class InternalError(TTSError):
    """The server failed while it worked on this request."""

    code = "INTERNAL"


class Unavailable(TTSError):  # noqa: N818
    """No server there, it is shutting down, or the model is not loaded or has died."""

    code = "UNAVAILABLE"


class InactivityTimeout(TTSError):  # noqa: N818
    """The server sent nothing for the inactivity limit. The stream has been cancelled."""

    code = "INACTIVITY_TIMEOUT"


class ProtocolError(TTSError):
    """The server broke the contract: a hole or overlap in the audio, wrong order, a malformed response."""

    code = "PROTOCOL"


_BY_CODE: dict[str, type[TTSError]] = {
    error.code: error for error in (InvalidArgument, ServerFull, Cancelled, InternalError, Unavailable)
}

# The code stands at the start, or behind a prefix that ends in punctuation: "in ensemble 'tts', FULL: ...".
_CODED = re.compile(rf"(?:^|[\s,\]:])({'|'.join(_BY_CODE)}):\s*(.*)", re.DOTALL)

# Triton's own wording (2.51) for errors raised before or around our models; the first match counts.
_UNCODED: tuple[tuple[type[TTSError], re.Pattern[str]], ...] = tuple(
    (error, re.compile("|".join(wordings), re.IGNORECASE))
    for error, wordings in (
        (ServerFull, ("exceeds maximum queue size",)),
        (
            Unavailable,
            (
                "unknown model",
                "has no available versions",
                "stub process .* is not healthy",
                "server not ready",
                "server is stopping",
                "stopped accepting new inference requests",
            ),
        ),
        # Inside the ensemble it is our own tensors that do not fit.
        (InternalError, ("in ensemble .* unexpected shape", "in ensemble .* but model .* expects")),
        (
            InvalidArgument,
            (
                "unexpected shape for input",
                "unexpected inference input",
                r"expected \d+ inputs? but got",
                "inference input .* data-type is",
                "input byte size mismatch",
                "incomplete string data",
                "already exists in request",
                "unable to find data for input",
                "input dimensions should be specified",
            ),
        ),
        (Cancelled, ("cancell?ed",)),
    )
)

# A Python traceback that the backend appends to the message of an exception.
_TRACEBACK = re.compile(r"\s*\n\s*At:\n.*", re.DOTALL)


def carries_code(text: str) -> bool:
    """True if `text` holds one of the server's stable codes."""
    return _CODED.search(text) is not None


def error_from_message(text: str) -> TTSError:
    """The typed error for the `error_message` of a response."""
    readable = _TRACEBACK.sub("", text).strip() or "the server gave no reason"
    coded = _CODED.search(readable)
    if coded:
        code, message = coded.groups()
        return _BY_CODE[code](message.strip() or code, text)
    for error, wording in _UNCODED:
        if wording.search(readable):
            return error(readable, text)
    return InternalError(readable, text)


_BY_STATUS: dict[grpc.StatusCode, type[TTSError]] = {
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.INTERNAL: InternalError,
}


def error_from_rpc(rpc_error: grpc.RpcError, url: str) -> TTSError:
    """The typed error for a gRPC call that did not end with status OK (server gone, refused, cut off)."""
    status: grpc.StatusCode = rpc_error.code()
    details = rpc_error.details() or ""
    if carries_code(details):
        return error_from_message(details)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in details:
        return InvalidArgument(f"a message to {url} is larger than gRPC allows: {details}", details)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return Unavailable(f"{url} answers, but is no Triton server: {details}", details)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(f"no answer from {url} in time", details)
    if status is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(f"no server at {url}, or the connection to it was lost ({details})", details)
    error = _BY_STATUS.get(status, Unavailable)
    return error(f"the call to {url} ended with {status.name}: {details or 'no details'}", details)


def no_more_text() -> InvalidArgument:
    """Text for a stream that has ended, or whose text has."""
    return InvalidArgument("the stream takes no more text: it has ended")


def silent(url: str, seconds: float) -> InactivityTimeout:
    """The inactivity limit has passed."""
    return InactivityTimeout(f"{url} sent nothing for {seconds:g} s; the stream is cancelled")


def unreadable(problem: Exception) -> ProtocolError:
    """A response that no check foresaw and that could not be read."""
    error = ProtocolError(f"a response could not be read: {problem!r}")
    error.__cause__ = problem
    return error

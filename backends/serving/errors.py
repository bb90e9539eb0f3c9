"""Errors as clients see them: a stable code, then a sentence."""

from __future__ import annotations

from enum import Enum


class ErrorCode(str, Enum):
    """The first word of every error text."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    FULL = "FULL"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"


class ServingError(Exception):
    """Ends one stream with an error; `str()` is the text that the client gets, "CODE: sentence"."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.value}: {message}")
        self.code = code


def invalid(message: str) -> ServingError:
    """The request is at fault."""
    return ServingError(ErrorCode.INVALID_ARGUMENT, message)

"""What the two services need from Triton, as small protocols, so that they can be run and tested without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from backends.serving.window import Window


class TalkerResponder(Protocol):
    """The way back of one request at the talker: one thread uses it, and ends it once."""

    def window(self, window: Window, last: bool) -> None:
        """Send a window to the codec; `last` ends the request at the talker."""

    def status(self, status: Mapping[str, Any]) -> None:
        """Answer a control request and end it."""

    def error(self, text: str) -> None:
        """End the request with an error."""

    def final(self) -> None:
        """End the request without a word."""


class CodecResponder(Protocol):
    """The way back of one chunk's request at the codec."""

    def audio(self, waveform: np.ndarray, info: str, last: bool) -> None:
        """Send float32 samples [n * channels], interleaved, with the chunk's JSON; `last` ends the request."""

    def error(self, text: str) -> None:
        """End the request with an error."""

    def final(self) -> None:
        """End the request without a word."""

    def is_cancelled(self) -> bool:
        """Whether the client is gone."""


class Log(Protocol):
    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    def error(self, message: str) -> None: ...


class Metrics(Protocol):
    """Where a service publishes its counters."""

    def publish(self, values: Mapping[str, float]) -> None:
        """Set each named metric to its value; names ending in _total are counters."""

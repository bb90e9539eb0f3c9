"""The record of one request from which every quality figure is computed (client/metrics.py)."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# -50 dBFS: quieter than this counts as the silence that a voice starts with.
AUDIBLE_AMPLITUDE = 10.0 ** (-50.0 / 20.0)


@dataclass(frozen=True)
class Arrival:
    """Audio that arrived: seconds since the request was sent, samples per channel."""

    seconds: float
    samples: int


@dataclass(frozen=True)
class Trace:
    """One request as the client saw it.

    started_at: Unix time at which the request was sent. All other times are seconds since then, on a
    monotonic clock. arrivals: one for each response that carried audio. first_audible_sample: index of the
    first sample above -50 dBFS in any channel, None if there was none. end_seconds: final response or error;
    None while the stream runs.
    """

    stream_id: str
    started_at: float
    arrivals: tuple[Arrival, ...]
    sample_rate: int | None = None
    channels: int | None = None
    first_audible_sample: int | None = None
    end_seconds: float | None = None
    finish_reason: str | None = None
    error_code: str | None = None
    error_message: str | None = None

    @property
    def succeeded(self) -> bool:
        """True if the stream came to its final response without an error and was not closed before."""
        return self.end_seconds is not None and self.error_code is None

    @property
    def audio_seconds(self) -> float:
        return (
            sum(arrival.samples for arrival in self.arrivals) / self.sample_rate if self.sample_rate else 0.0
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Trace:
        return cls(**{**fields, "arrivals": tuple(Arrival(**arrival) for arrival in fields["arrivals"])})


class TraceRecorder:
    """Builds a trace while the stream runs. Not thread-safe: the stream's lock guards it."""

    def __init__(self, stream_id: str) -> None:
        self._stream_id = stream_id
        self._started_at = time.time()
        self._zero = time.perf_counter()
        self._arrivals: list[Arrival] = []
        self._total = 0
        self._sample_rate: int | None = None
        self._channels: int | None = None
        self._first_audible: int | None = None
        self._end: float | None = None
        self._finish_reason: str | None = None
        self._error: tuple[str, str] | None = None

    def now(self) -> float:
        """Seconds since the request was sent."""
        return time.perf_counter() - self._zero

    def audio(
        self,
        seconds: float,
        samples: npt.NDArray[np.float32],
        sample_rate: int,
        channels: int,
        finish_reason: str | None,
    ) -> None:
        self._sample_rate, self._channels, self._finish_reason = sample_rate, channels, finish_reason
        count = len(samples)
        if not count:
            return
        self._arrivals.append(Arrival(seconds, count))
        if self._first_audible is None:
            loud = np.abs(samples) > AUDIBLE_AMPLITUDE
            loud = loud.any(axis=1) if loud.ndim == 2 else loud
            if loud.any():
                self._first_audible = self._total + int(loud.argmax())
        self._total += count

    def ended(self, error_code: str | None = None, error_message: str = "") -> None:
        """The first end counts; later ones are consequences of it."""
        if self._end is None:
            self._end = self.now()
            self._error = None if error_code is None else (error_code, error_message)

    def snapshot(self) -> Trace:
        code, message = self._error or (None, None)
        return Trace(
            stream_id=self._stream_id,
            started_at=self._started_at,
            arrivals=tuple(self._arrivals),
            sample_rate=self._sample_rate,
            channels=self._channels,
            first_audible_sample=self._first_audible,
            end_seconds=self._end,
            finish_reason=self._finish_reason,
            error_code=code,
            error_message=message,
        )

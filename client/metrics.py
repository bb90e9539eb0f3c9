"""Streaming quality, computed from the client's own record of a request.

Every figure is a pure function of one `Trace`: arrivals (t_i, samples_i), with t in seconds since the request
was sent. Nobody agrees on one definition of "plays without a gap", so all of those in use are reported:

A   The player starts at the first chunk and never pauses. deficit_i = (t_i - t_0) - audio before chunk i. The
underrun is the largest deficit, that is the pre-buffer which would have been needed. Continuous: <= 100 ms.
(vLLM-Omni, benchmarks/audio_continuity.py.) B   The player pauses when it runs dry and goes on when audio
comes. C50/C100/C200: the longest single stall is at most 50/100/200 ms. (SGLang-Omni.) C   The same player;
the total of its stalls, those over 5 ms only. (vLLM-Omni, AdaptiveChunkController.) D   The player of A
without any tolerance: each chunk arrives before the audio ahead of it has run out. (VoxServe, "streaming
viability".)

Two stalls of 0.2 s are 0.4 s in A and C but 0.2 s in B. A stream of one chunk cannot stall: it counts as
continuous in A, has zero in C, and is left out (None) of B and D as in their sources. A stream without audio
has none of these. Failed streams are measured too but enter no quality average: they lower the success rate,
which stands beside it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from client.trace import Trace

CONTINUITY_THRESHOLD_SECONDS = 0.100
STALL_FLOOR_SECONDS = 0.005

# Times are differences of floats: a figure that is equal to its limit on paper must not miss it by 1e-17 s.
_ROUNDING_SECONDS = 1e-9


def ttfp_seconds(trace: Trace) -> float | None:
    """Time to first packet: from sending the request to the first response with audio."""
    return trace.arrivals[0].seconds if trace.arrivals else None


def audible_ttfp_seconds(trace: Trace) -> float | None:
    """When the first sample above -50 dBFS is heard: the time to first packet plus the silence before it.

    The player starts at the first chunk and pauses when it runs dry. None if nothing audible came.
    """
    if trace.first_audible_sample is None:
        return None
    rate, first = _rate(trace), 0
    for arrival, starts in zip(trace.arrivals, _playing_starts(trace), strict=True):
        if trace.first_audible_sample < first + arrival.samples:
            return starts + (trace.first_audible_sample - first) / rate
        first += arrival.samples
    raise ValueError(
        f"first_audible_sample {trace.first_audible_sample} is not within the {first} samples received"
    )


def rtf(trace: Trace) -> float | None:
    """Real-time factor: time from sending the request to its last audio, over the duration of the audio."""
    return trace.arrivals[-1].seconds / trace.audio_seconds if trace.arrivals else None


def gaps_seconds(trace: Trace) -> list[float]:
    """Times between successive chunks."""
    return [later.seconds - earlier.seconds for earlier, later in itertools.pairwise(trace.arrivals)]


def deficits_seconds(trace: Trace) -> list[float]:
    """A: for each chunk, by how much the player that never pauses was ahead of the audio when the chunk
    arrived.

    Negative values are audio in hand: -deficit_i is what was buffered just before chunk i. The first is 0.
    """
    deficits, before = [], 0.0
    for arrival in trace.arrivals:
        deficits.append(arrival.seconds - trace.arrivals[0].seconds - before)
        before += arrival.samples / _rate(trace)
    return deficits


def underrun_seconds(trace: Trace) -> float | None:
    """A: the largest deficit; 0 for a single chunk."""
    return max(deficits_seconds(trace), default=None)


def is_continuous(trace: Trace, threshold_seconds: float = CONTINUITY_THRESHOLD_SECONDS) -> bool | None:
    """A: the underrun is within the threshold."""
    return _within(underrun_seconds(trace), threshold_seconds)


def stalls_seconds(trace: Trace) -> list[float]:
    """B and C: for each chunk but the first, how long a player that pauses when dry had waited for it."""
    ends = [
        start + arrival.samples / _rate(trace)
        for start, arrival in zip(_playing_starts(trace), trace.arrivals, strict=True)
    ]
    return [max(0.0, arrival.seconds - end) for end, arrival in zip(ends, trace.arrivals[1:], strict=False)]


def longest_stall_seconds(trace: Trace) -> float | None:
    """B: the longest single stall; None with fewer than two chunks."""
    return max(stalls_seconds(trace), default=None)


def stalls_within(trace: Trace, limit_seconds: float) -> bool | None:
    """B: C50, C100 and C200 are this with 0.05, 0.1 and 0.2 s. None with fewer than two chunks."""
    return _within(longest_stall_seconds(trace), limit_seconds)


def total_stall_seconds(trace: Trace, floor_seconds: float = STALL_FLOOR_SECONDS) -> float | None:
    """C: the sum of the stalls that are longer than the floor; 0 for a single chunk."""
    if not trace.arrivals:
        return None
    return math.fsum(stall for stall in stalls_seconds(trace) if stall > floor_seconds + _ROUNDING_SECONDS)


def is_on_time(trace: Trace) -> bool | None:
    """D: each chunk after the first arrives strictly before it is due. None with fewer than two chunks."""
    if len(trace.arrivals) < 2:
        return None
    return all(deficit < -_ROUNDING_SECONDS for deficit in deficits_seconds(trace)[1:])


@dataclass(frozen=True)
class StreamMetrics:
    """All figures of one request. None where a definition does not apply."""

    succeeded: bool
    error_code: str | None
    finish_reason: str | None
    chunks: int
    audio_seconds: float
    end_seconds: float | None
    ttfp_seconds: float | None
    audible_ttfp_seconds: float | None
    rtf: float | None
    underrun_seconds: float | None
    continuous: bool | None
    longest_stall_seconds: float | None
    c50: bool | None
    c100: bool | None
    c200: bool | None
    total_stall_seconds: float | None
    on_time: bool | None
    gaps_seconds: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def measure(trace: Trace) -> StreamMetrics:
    """All figures of one request. Of a failed one, what had arrived until then is measured."""
    return StreamMetrics(
        succeeded=trace.succeeded,
        error_code=trace.error_code,
        finish_reason=trace.finish_reason,
        chunks=len(trace.arrivals),
        audio_seconds=trace.audio_seconds,
        end_seconds=trace.end_seconds,
        ttfp_seconds=ttfp_seconds(trace),
        audible_ttfp_seconds=audible_ttfp_seconds(trace),
        rtf=rtf(trace),
        underrun_seconds=underrun_seconds(trace),
        continuous=is_continuous(trace),
        longest_stall_seconds=longest_stall_seconds(trace),
        c50=stalls_within(trace, 0.050),
        c100=stalls_within(trace, 0.100),
        c200=stalls_within(trace, 0.200),
        total_stall_seconds=total_stall_seconds(trace),
        on_time=is_on_time(trace),
        gaps_seconds=tuple(gaps_seconds(trace)),
    )


@dataclass(frozen=True)
class Rate:
    """`hits` of `total`, with its 95 % Wilson interval: 40 requests leave about +-15 points of doubt."""

    hits: int
    total: int

    @property
    def value(self) -> float | None:
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        if not self.total:
            return None
        share, z = self.hits / self.total, 1.959964
        spread = z / self.total * math.sqrt(self.hits * (1 - share) + z * z / 4)
        centre = share + z * z / (2 * self.total)
        scale = 1 + z * z / self.total
        return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)

    def to_dict(self) -> dict[str, Any]:
        return {"hits": self.hits, "total": self.total, "value": self.value, "interval": self.interval}


@dataclass(frozen=True)
class Distribution:
    """Of the values that exist; percentiles are interpolated linearly. All None if there are none."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Distribution:
        known = np.array([value for value in values if value is not None], dtype=np.float64)
        if not known.size:
            return cls(count=0)
        p50, p90, p95, p99 = (float(value) for value in np.percentile(known, [50, 90, 95, 99]))
        return cls(known.size, float(known.mean()), p50, p90, p95, p99, float(known.max()))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Summary:
    """Many requests. Quality is averaged over the successful ones; read it together with `success`."""

    requests: int
    success: Rate
    errors: dict[str, int]
    audio_seconds: float
    single_chunk: int
    ttfp_seconds: Distribution
    audible_ttfp_seconds: Distribution
    rtf: Distribution
    underrun_seconds: Distribution
    continuity: Rate
    longest_stall_seconds: Distribution
    c50: Rate
    c100: Rate
    c200: Rate
    total_stall_seconds: Distribution
    on_time: Rate
    chunks: Distribution
    gaps_seconds: Distribution

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            name: value.to_dict() if isinstance(value, (Rate, Distribution)) else value
            for name, value in vars(self).items()
        }


def summarise(streams: Sequence[StreamMetrics]) -> Summary:
    """Aggregate requests of one run. Gaps are pooled over all streams."""
    good = [stream for stream in streams if stream.succeeded]
    return Summary(
        requests=len(streams),
        success=Rate(len(good), len(streams)),
        errors=dict(Counter(_failure(stream) for stream in streams if not stream.succeeded)),
        audio_seconds=math.fsum(stream.audio_seconds for stream in good),
        single_chunk=sum(stream.chunks == 1 for stream in good),
        ttfp_seconds=Distribution.of(stream.ttfp_seconds for stream in good),
        audible_ttfp_seconds=Distribution.of(stream.audible_ttfp_seconds for stream in good),
        rtf=Distribution.of(stream.rtf for stream in good),
        underrun_seconds=Distribution.of(stream.underrun_seconds for stream in good),
        continuity=_rate_of(stream.continuous for stream in good),
        longest_stall_seconds=Distribution.of(stream.longest_stall_seconds for stream in good),
        c50=_rate_of(stream.c50 for stream in good),
        c100=_rate_of(stream.c100 for stream in good),
        c200=_rate_of(stream.c200 for stream in good),
        total_stall_seconds=Distribution.of(stream.total_stall_seconds for stream in good),
        on_time=_rate_of(stream.on_time for stream in good),
        chunks=Distribution.of(float(stream.chunks) for stream in good),
        gaps_seconds=Distribution.of(gap for stream in good for gap in stream.gaps_seconds),
    )


def _rate(trace: Trace) -> int:
    if not trace.sample_rate:
        raise ValueError(f"trace {trace.stream_id} has audio but no sample rate")
    return trace.sample_rate


def _playing_starts(trace: Trace) -> list[float]:
    """When a player that pauses when dry begins each chunk."""
    starts, cursor = [], 0.0
    for arrival in trace.arrivals:
        start = max(arrival.seconds, cursor)
        starts.append(start)
        cursor = start + arrival.samples / _rate(trace)
    return starts


def _within(value: float | None, limit: float) -> bool | None:
    return None if value is None else value <= limit + _ROUNDING_SECONDS


def _rate_of(verdicts: Iterable[bool | None]) -> Rate:
    known = [verdict for verdict in verdicts if verdict is not None]
    return Rate(sum(known), len(known))


def _failure(stream: StreamMetrics) -> str:
    return stream.error_code or "UNFINISHED"

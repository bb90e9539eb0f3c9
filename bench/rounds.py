"""From requests to figures: a round's summary, and the median over rounds with the first one discarded."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.arrivals import ClosedLoop, Load
from bench.load import Round
from client.metrics import Rate, Summary, summarise
from client.trace import Trace

Figure = Callable[[Summary], float | None]

FIGURES: Mapping[str, Figure] = {
    "success": lambda s: s.success.value,
    "ttfp_mean": lambda s: s.ttfp_seconds.mean,
    "ttfp_p50": lambda s: s.ttfp_seconds.p50,
    "ttfp_p95": lambda s: s.ttfp_seconds.p95,
    "ttfp_p99": lambda s: s.ttfp_seconds.p99,
    "audible_ttfp_p50": lambda s: s.audible_ttfp_seconds.p50,
    "rtf_mean": lambda s: s.rtf.mean,
    "continuity": lambda s: s.continuity.value,
    "underrun_mean": lambda s: s.underrun_seconds.mean,
    "underrun_max": lambda s: s.underrun_seconds.max,
    "c50": lambda s: s.c50.value,
    "c100": lambda s: s.c100.value,
    "c200": lambda s: s.c200.value,
    "stall_mean": lambda s: s.total_stall_seconds.mean,
    "on_time": lambda s: s.on_time.value,
    "gap_p99": lambda s: s.gaps_seconds.p99,
    "chunks_mean": lambda s: s.chunks.mean,
}
"""Figures of a round by name: times in seconds, shares from 0 to 1 (definitions A to D:
client/metrics.py)."""


@dataclass(frozen=True)
class RoundReport:
    """One round in figures. server_cpu: CPU seconds of each server process meanwhile, empty if not ours."""

    summary: Summary
    rtf_after_first: float | None
    wall_seconds: float
    client_cpu_share: float
    faults: tuple[str, ...]
    server_cpu: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, done: Round, server_cpu: Mapping[str, float] | None = None) -> RoundReport:
        summary = summarise([outcome.metrics for outcome in done.outcomes])
        faults = tuple(
            outcome.fault for outcome in done.outcomes if outcome.fault and outcome.trace.succeeded
        )
        after_first = mean_of(rtf_after_first(o.trace) for o in done.outcomes if o.trace.succeeded)
        return cls(summary, after_first, done.wall_seconds, done.cpu_share, faults, server_cpu or {})

    @property
    def audio_per_second(self) -> float:
        """Seconds of audio made a second, of all streams together."""
        return self.summary.audio_seconds / self.wall_seconds

    def figures(self) -> dict[str, float | None]:
        return {
            **{name: figure(self.summary) for name, figure in FIGURES.items()},
            "rtf_after_first": self.rtf_after_first,
            "requests_per_second": self.summary.success.hits / self.wall_seconds,
            "audio_per_second": self.audio_per_second,
            "client_cpu": self.client_cpu_share,
            "server_cpu": sum(self.server_cpu.values()) / self.wall_seconds if self.server_cpu else None,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "figures": self.figures(),
            "summary": self.summary.to_dict(),
            "wall_seconds": self.wall_seconds,
            "server_cpu_seconds": dict(self.server_cpu),
            "faults": list(self.faults),
        }


@dataclass(frozen=True)
class Point:
    """One load, several rounds. `rounds` excludes the discarded first one."""

    label: str
    load: Load
    rounds: tuple[RoundReport, ...]
    cold: RoundReport | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for report in self.rounds for fault in report.faults)

    def median(self) -> dict[str, float | None]:
        """The median over the rounds of each figure that exists in them."""
        return {name: median_of(report.figures()[name] for report in self.rounds) for name in self._names()}

    def span(self, name: str) -> tuple[float, float] | None:
        """The smallest and the largest value of a figure over the rounds."""
        values = [value for report in self.rounds if (value := report.figures()[name]) is not None]
        return (min(values), max(values)) if values else None

    def continuity(self) -> Rate:
        """All rounds together, for the interval that the number of requests allows."""
        rates = [report.summary.continuity for report in self.rounds]
        return Rate(sum(rate.hits for rate in rates), sum(rate.total for rate in rates))

    def errors(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for report in self.rounds:
            for code, count in report.summary.errors.items():
                total[code] = total.get(code, 0) + count
        return total

    def _names(self) -> Sequence[str]:
        return list(self.rounds[0].figures())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "label": self.label,
            "load": {"concurrency": self.load.concurrency}
            if isinstance(self.load, ClosedLoop)
            else {"rate": self.load.rate},
            "requests_a_round": self.rounds[0].summary.requests,
            "median": self.median(),
            "span": {name: self.span(name) for name in self._names()},
            "continuity_all_rounds": self.continuity().to_dict(),
            "errors": self.errors(),
            "faults": list(self.faults),
            "rounds": [report.to_dict() for report in self.rounds],
            "cold_round": self.cold.to_dict() if self.cold else None,
        }


def rtf_after_first(trace: Trace) -> float | None:
    """Time from the first packet to the last over the duration of the audio; None without audio.

    The table of vLLM-Omni pull request 8124 adds up only if its RTF is this one (docs/ramps.md).
    """
    if not trace.arrivals:
        return None
    return (trace.arrivals[-1].seconds - trace.arrivals[0].seconds) / trace.audio_seconds


def mean_of(values: Iterable[float | None]) -> float | None:
    """None values are left out; None if nothing remains."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def median_of(values: Iterable[float | None]) -> float | None:
    """None values are left out; None if nothing remains."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None

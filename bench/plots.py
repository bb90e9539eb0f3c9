"""Plots of a run, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

from bench.arrivals import ClosedLoop
from bench.rounds import Point
from client.metrics import CONTINUITY_THRESHOLD_SECONDS, underrun_seconds
from client.trace import Trace

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def worst(traces: Sequence[Trace]) -> Trace | None:
    """The stream with the largest underrun (definition A), of those with audio."""
    return max((t for t in traces if t.arrivals), key=lambda t: underrun_seconds(t) or 0.0, default=None)


def buffer_curve(trace: Trace) -> tuple[list[float], list[float]]:
    """Audio in hand over time for a player that starts at the first chunk and never pauses.

    Two points a chunk, before and after its arrival; times from the first chunk, both in seconds.
    """
    assert trace.sample_rate
    times, levels, received = [], [], 0.0
    for arrival in trace.arrivals:
        now = arrival.seconds - trace.arrivals[0].seconds
        times += [now, now]
        levels.append(received - now)
        received += arrival.samples / trace.sample_rate
        levels.append(received - now)
    return times, levels


def plot_buffers(path: Path, streams: Mapping[str, Trace], title: str) -> None:
    """The playback buffer over time of one stream a label; below zero the listener hears silence."""
    figure, axes = plt.subplots(figsize=(9, 4.5))
    for label, trace in streams.items():
        axes.plot(*buffer_curve(trace), label=label, linewidth=1.2)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.axhline(
        -CONTINUITY_THRESHOLD_SECONDS, color="red", linewidth=0.8, linestyle="--", label="100 ms late"
    )
    axes.set(xlabel="seconds since the first chunk", ylabel="audio in hand, seconds", title=title)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    _save(figure, path)


def plot_loads(path: Path, points: Sequence[Point], title: str) -> None:
    """TTFP (p50, p95) and continuity over the load."""
    closed = isinstance(points[0].load, ClosedLoop)
    loads = [p.load.concurrency if isinstance(p.load, ClosedLoop) else p.load.rate for p in points]
    medians = [point.median() for point in points]
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 6.5), sharex=True)
    for name, label in (("ttfp_p50", "p50"), ("ttfp_p95", "p95")):
        upper.plot(loads, [1000 * (m[name] or float("nan")) for m in medians], "o-", label=label)
    upper.set(ylabel="TTFP, ms", title=title)
    for name, label in (
        ("continuity", "A: continuous, 100 ms"),
        ("c50", "B: C50"),
        ("on_time", "D: on time"),
    ):
        values = [m[name] for m in medians]
        lower.plot(loads, [100 * v if v is not None else float("nan") for v in values], "o-", label=label)
    lower.set(
        ylabel="streams, %", xlabel="concurrent streams" if closed else "requests a second", ylim=(-5, 105)
    )
    for axes in (upper, lower):
        if closed and len(loads) > 1:
            axes.set_xscale("log", base=2)
            axes.set_xticks(loads, [f"{load:g}" for load in loads])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)

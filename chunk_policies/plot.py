"""The simulator's picture: what listeners have in their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chunk_policies.metrics import CONTINUITY_SECONDS
from chunk_policies.simulate import ArmResult

#: What is shown after a stream's first packet; later on buffers only grow.
SHOWN_SECONDS = 3.0


def plot_buffers(results: Sequence[ArmResult], path: Path, title: str) -> None:
    """Write a PNG: the audio each stream's player holds over time since its first packet, a panel an arm.

    The player never pauses (definition A), so a negative value is the underrun. The worst stream is red.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - only this function needs it

    figure = Figure(figsize=(9, 2.1 * len(results) + 0.6), layout="constrained")
    panels = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    figure.suptitle(title)
    for panel, result in zip(panels, results, strict=True):
        worst = max(result.streams, key=lambda stream: stream.quality().underrun)
        for stream in result.streams:
            times, buffers = _buffer(stream.packets)
            is_worst = stream is worst
            look = (
                {"color": "#b3261e", "lw": 1.4, "zorder": 3} if is_worst else {"color": "#8aa4c8", "lw": 0.5}
            )
            panel.plot(times, buffers, **look)
        panel.axhline(0.0, color="black", lw=0.8)
        panel.axhline(-CONTINUITY_SECONDS, color="black", lw=0.6, ls=":")
        panel.set_xlim(0, SHOWN_SECONDS)
        panel.set_ylim(-1.2, 2.5)
        panel.set_title(
            f"{result.name}: {100 * result.rounds[0].continuous:.0f} % continuous, "
            f"first packet {1000 * result.rounds[0].ttfp:.0f} ms",
            loc="left",
            fontsize=10,
        )
        panel.set_ylabel("buffer, s")
    panels[-1].set_xlabel("seconds since the first packet")
    figure.savefig(path, dpi=90)


def _buffer(packets: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    first = packets[0][0]
    times: list[float] = []
    buffers: list[float] = []
    audio = 0.0
    for arrival, seconds in packets:
        elapsed = arrival - first
        times += [elapsed, elapsed]
        buffers += [audio - elapsed, audio + seconds - elapsed]
        audio += seconds
    times.append(audio)
    buffers.append(0.0)
    return times, buffers

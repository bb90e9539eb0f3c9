"""Points as a table on the terminal and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.rounds import Point

# name of the figure, heading, factor, digits
COLUMNS: Sequence[tuple[str, str, float, int]] = (
    ("success", "ok %", 100, 1),
    ("ttfp_p50", "TTFP p50 ms", 1000, 0),
    ("ttfp_p95", "p95", 1000, 0),
    ("audible_ttfp_p50", "audible p50", 1000, 0),
    ("rtf_mean", "RTF", 1, 3),
    ("continuity", "A: cont. %", 100, 1),
    ("underrun_mean", "underrun ms", 1000, 1),
    ("c50", "B: C50 %", 100, 1),
    ("c100", "C100 %", 100, 1),
    ("c200", "C200 %", 100, 1),
    ("stall_mean", "C: stall ms", 1000, 1),
    ("on_time", "D: on time %", 100, 1),
    ("gap_p99", "gap p99 ms", 1000, 0),
    ("chunks_mean", "chunks", 1, 1),
    ("audio_per_second", "audio s/s", 1, 1),
    ("client_cpu", "client CPU %", 100, 0),
    ("server_cpu", "server CPU %", 100, 0),
)


def shown(value: float | None, factor: float = 1.0, digits: int = 1) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def points_table(points: Iterable[Point], title: str = "") -> Table:
    """Medians over the rounds, a row a point; errors and faults of the audio are appended to the label."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("load", no_wrap=True)
    for _, heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for point in points:
        median = point.median()
        cells = [shown(median[name], factor, digits) for name, _, factor, digits in COLUMNS]
        table.add_row(point.label, *cells, style="red" if point.faults or point.errors() else None)
    return table


def print_points(console: Console, points: Sequence[Point], title: str = "") -> None:
    console.print(points_table(points, title))
    for point in points:
        if point.errors():
            console.print(f"{point.label}: failed requests: {point.errors()}")
        if point.faults:
            console.print(
                f"{point.label}: {len(point.faults)} streams with wrong audio; first: {point.faults[0]}"
            )


def terminal() -> Console:
    """The terminal; as wide as the tables need where the output is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=220)


def write_csv(path: Path, points: Sequence[Point]) -> None:
    """A row a point and round ("median" for their median), a column a figure, in seconds and shares."""
    names = list(points[0].median())
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "load", "round", *names])
        for point in points:
            rows = [(str(i), report.figures()) for i, report in enumerate(point.rounds, start=1)]
            for label, figures in [*rows, ("median", point.median())]:
                writer.writerow([point.label, str(point.load), label, *[figures[name] for name in names]])

"""What `say` tells about a stream: a few figures, a table of chunks, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from client.audio import AudioChunk
from client.metrics import StreamMetrics, deficits_seconds, measure
from client.trace import Trace

# Of a long stream, how it starts and how it ends; --json has all chunks.
_MOST_ROWS, _FIRST_ROWS = 40, 30
_CONTINUOUS = {True: "continuous", False: "not continuous", None: "no audio"}


def print_report(console: Console, chunks: Sequence[AudioChunk], trace: Trace) -> None:
    """Figures and table; plain text without escapes or frames where `console` is no terminal."""
    metrics = measure(trace)
    for label, value in _figures(metrics):
        console.print(f"[bold]{label:<22}[/bold]{escape(value)}", highlight=False, soft_wrap=True)
    if trace.arrivals:
        console.print()
        console.print(_table(chunks, trace))


def json_report(chunks: Sequence[AudioChunk], trace: Trace) -> dict[str, Any]:
    """The request's figures, its chunks and its trace, ready for json.dump."""
    metrics = measure(trace).to_dict()
    return {
        "metrics": metrics,
        "chunks": [
            {
                "index": chunk.index,
                "first_sample": chunk.first_sample,
                "samples": len(chunk.samples),
                "frames": chunk.frames,
                "arrival_seconds": chunk.arrival_seconds,
                "buffered_seconds": buffered,
                "finish_reason": chunk.finish_reason,
            }
            for chunk, buffered in _with_buffer(chunks, trace)
        ],
        "trace": trace.to_dict(),
    }


def _figures(metrics: StreamMetrics) -> list[tuple[str, str]]:
    verdict = _CONTINUOUS[metrics.continuous]
    if metrics.underrun_seconds is not None:
        verdict += f" (underrun {_ms(metrics.underrun_seconds)}, limit 100 ms)"
    return [
        ("time to first packet", _ms(metrics.ttfp_seconds)),
        ("first audible sample", _ms(metrics.audible_ttfp_seconds)),
        ("RTF", "-" if metrics.rtf is None else f"{metrics.rtf:.3f}"),
        ("audio", f"{metrics.audio_seconds:.2f} s in {metrics.chunks} chunks"),
        ("playback", verdict),
        ("finish reason", metrics.finish_reason or "-"),
    ]


def _table(chunks: Sequence[AudioChunk], trace: Trace) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("chunk", "frames", "audio ms", "arrival ms", "buffered ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = _with_buffer(chunks, trace)
    left_out = len(rows) - _MOST_ROWS
    for number, (chunk, buffered) in enumerate(rows):
        if left_out > 0 and _FIRST_ROWS <= number < _FIRST_ROWS + left_out:
            if number == _FIRST_ROWS:
                table.add_row("...", f"({left_out} more)")
            continue
        late = buffered is not None and buffered < -0.0005
        table.add_row(
            str(chunk.index),
            str(chunk.frames),
            f"{chunk.seconds * 1000:.0f}",
            f"{chunk.arrival_seconds * 1000:.1f}",
            "-" if buffered is None else f"{buffered * 1000:.1f}",
            style="red" if late else None,
        )
    return table


def _with_buffer(chunks: Sequence[AudioChunk], trace: Trace) -> list[tuple[AudioChunk, float | None]]:
    """Each chunk with the audio that a player, started at the first chunk, had in hand when it arrived.

    Negative is late. Chunks without samples are no arrivals and have no figure.
    """
    deficits = iter(deficits_seconds(trace))
    return [(chunk, -next(deficits) + 0.0 if len(chunk.samples) else None) for chunk in chunks]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"

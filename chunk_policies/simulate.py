"""Choose a ramp without the machine: ``python -m chunk_policies.simulate --help``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from chunk_policies.machine import ORDERS, PRESETS, Machine, load_machine
from chunk_policies.metrics import QualitySummary, summarise
from chunk_policies.pipeline import PlayedStream, Workload, play
from chunk_policies.schedule import ChunkSchedule, ScheduleError

DEFAULT_ARMS = ("off", "2,4,8,15", "adaptive:2,4,8,15")


@dataclass(frozen=True)
class ArmResult:
    """One schedule on one machine.

    Attributes:
        name: of the arm.
        schedule: what was played.
        rounds: the summary of each round.
        streams: those of the first round, for plots.
    """

    name: str
    schedule: ChunkSchedule
    rounds: tuple[QualitySummary, ...]
    streams: tuple[PlayedStream, ...]

    def median(self, measure: str) -> float:
        """Median over the rounds of one field of :class:`QualitySummary`."""
        return median(getattr(summary, measure) for summary in self.rounds)

    def extremes(self, measure: str) -> tuple[float, float]:
        """Smallest and largest over the rounds."""
        values = [getattr(summary, measure) for summary in self.rounds]
        return min(values), max(values)


def run_arm(
    name: str, schedule: ChunkSchedule, machine: Machine, workload: Workload, rounds: int = 1
) -> ArmResult:
    """Play ``rounds`` rounds that differ in their seed only."""
    played = [play(machine, schedule, replace(workload, seed=workload.seed + k)) for k in range(rounds)]
    summaries = tuple(summarise([stream.quality() for stream in streams]) for streams in played)
    return ArmResult(name, schedule, summaries, tuple(played[0]))


def parse_arm(text: str, base: Mapping[str, Any], initial: int) -> tuple[str, ChunkSchedule]:
    """One ``--arm``: ``off``, ``dynamic``, ``2,4,8,15``, ``adaptive[:2,4,8,15]`` or a JSON mapping.

    Args:
        text: the argument; ``NAME=`` in front names the arm.
        base: keys of every arm; what the arm says wins.
        initial: first chunk of the arm ``off``.

    Raises:
        ScheduleError: the arm is malformed.
    """
    name, equals, spec = text.partition("=")
    if not equals or text.startswith("{"):
        name = spec = text
    kind, _, ramp = spec.partition(":")
    values: dict[str, Any]
    if spec.startswith("{"):
        try:
            values = json.loads(spec)
        except json.JSONDecodeError as error:
            raise ScheduleError(f"--arm {text}: not valid JSON ({error})") from error
    elif spec == "off":
        values = {"initial_codec_chunk_frames": initial}
    elif spec == "dynamic":
        values = {"initial_codec_chunk_dynamic": True}
    elif kind == "adaptive":
        values = {"codec_chunk_adaptive": True, "codec_chunk_ramp": ramp or None}
    else:
        values = {"codec_chunk_ramp": spec}
    return name, ChunkSchedule.from_mapping({**base, **values}, source=f"--arm {text}")


Cell = Callable[[float], str]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _ms(value: float) -> str:
    return f"{1000 * value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.3f}"


COLUMNS: tuple[tuple[str, str, Cell], ...] = (
    ("TTFP ms", "ttfp", _ms),
    ("p95", "ttfp_p95", _ms),
    ("RTF", "rtf", _ratio),
    ("after 1st", "rtf_after_first", _ratio),
    ("A cont %", "continuous", _percent),
    ("underrun ms", "underrun", _ms),
    ("max", "underrun_max", _ms),
    ("B C50 %", "c50", _percent),
    ("C100", "c100", _percent),
    ("C200", "c200", _percent),
    ("C silence ms", "silence", _ms),
    ("D on time %", "on_time", _percent),
    ("chunks", "chunks", lambda value: f"{value:.1f}"),
    ("gap p99 ms", "interval_p99", _ms),
)


def table(results: Sequence[ArmResult], ranges: bool = False) -> str:
    """Medians over the rounds, one line an arm; with ``ranges`` a second line from smallest to largest."""
    lines = [["arm", *(title for title, _, _ in COLUMNS)]]
    for result in results:
        lines.append([result.name, *(cell(result.median(measure)) for _, measure, cell in COLUMNS)])
        if ranges:
            spans = [(cell, result.extremes(measure)) for _, measure, cell in COLUMNS]
            lines.append(["", *(f"{cell(low)}-{cell(high)}" for cell, (low, high) in spans)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width) for column, (text, width) in pairs)
        for pairs in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chunk_policies.simulate",
        description="Plays chunk schedules on a machine's costs in virtual time; prints streaming quality.",
    )
    parser.add_argument("--machine", default="ascend-910b", help=f"{', '.join(PRESETS)} or a .json file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="another cost of the machine, in seconds",
    )
    parser.add_argument("--order", choices=ORDERS, help="which chunks the codec takes first")
    parser.add_argument("--codec-batch", type=int, help="rows in one codec call")
    parser.add_argument(
        "--arm",
        action="append",
        help="a schedule, may be repeated: off, dynamic, 2,4,8,15, adaptive:2,4,8,15 or a JSON mapping as in "
        f"a voice's stream section; NAME= in front names it (default: {' '.join(DEFAULT_ARMS)})",
    )
    parser.add_argument("--steady", type=int, default=15, help="codec_chunk_frames (15)")
    parser.add_argument(
        "--initial", type=int, default=1, help="initial_codec_chunk_frames of the arm off (1)"
    )
    parser.add_argument(
        "--min-frames", type=int, default=1, help="codec_chunk_min_frames of adaptive arms (1)"
    )
    parser.add_argument("--margin-ms", type=float, default=50.0, help="codec_chunk_safety_margin_ms (50)")
    parser.add_argument("--left-context", type=int, default=0, help="codec_left_context_frames (0)")
    parser.add_argument(
        "--windowed", action="store_true", help="the codec keeps no state and decodes windows"
    )
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=40, help="a round (40)")
    parser.add_argument("--frames", type=float, default=125.0, help="mean length of a request (125)")
    parser.add_argument(
        "--frames-spread", type=float, default=0.2, help="sigma of its log-normal spread (0.2)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="the table gives medians over rounds (5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranges", action="store_true", help="also print the range over the rounds")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="playback buffer over time, a panel an arm")
    parser.add_argument("--json", type=Path, help="write every round's figures")
    return parser


def _machine(options: argparse.Namespace) -> Machine:
    changes: dict[str, Any] = {}
    for text in options.set:
        key, equals, value = text.partition("=")
        try:
            changes[key] = int(value) if key == "codec_batch" else float(value)
        except ValueError as error:
            raise ValueError(f"--set {text}: must be FIELD=NUMBER") from error
        if not equals:
            raise ValueError(f"--set {text}: must be FIELD=NUMBER")
    if options.order:
        changes["order"] = options.order
    if options.codec_batch:
        changes["codec_batch"] = options.codec_batch
    return load_machine(options.machine).changed(changes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    base = {
        "codec_chunk_frames": options.steady,
        "codec_left_context_frames": options.left_context,
        "codec_chunk_min_frames": options.min_frames,
        "codec_chunk_safety_margin_ms": options.margin_ms,
    }
    try:
        machine = _machine(options)
        arms = [parse_arm(text, base, options.initial) for text in options.arm or DEFAULT_ARMS]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    workload = Workload(
        concurrency=options.concurrency,
        requests=options.requests,
        frames=options.frames,
        frames_spread=options.frames_spread,
        windowed=options.windowed,
        seed=options.seed,
    )
    print(
        f"machine {machine.name}, codec order {machine.order}, codec batch {machine.codec_batch}; "
        "all times are simulated"
    )
    for source in machine.sources:
        print(f"  {source}")
    print(f"{workload.concurrency} clients, {options.rounds} rounds of {workload.requests} requests\n")
    results = []
    for name, schedule in arms:
        for warning in schedule.warnings:
            print(f"warning: {warning}")
        results.append(run_arm(name, schedule, machine, workload, options.rounds))
    print(table(results, options.ranges))
    if options.plot:
        from chunk_policies.plot import plot_buffers  # noqa: PLC0415 - matplotlib is slow to load

        plot_buffers(results, options.plot, f"{machine.name}, {workload.concurrency} clients")
        print(f"\nwrote {options.plot}")
    if options.json:
        rounds = {result.name: [asdict(summary) for summary in result.rounds] for result in results}
        report = {"machine": asdict(machine), "workload": asdict(workload), "rounds": rounds}
        options.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

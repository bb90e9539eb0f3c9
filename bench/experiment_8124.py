"""`./tritone bench experiment-8124`: the experiment of vLLM-Omni pull request 8124 on this server.

Eight concurrent streams of a voice-cloning model with about ten seconds of speech each, 40 requests a round,
a cold round and five that count, the median of which is reported; arms that differ in nothing but the chunk
schedule. The model time is that of the paced voice: simulated, calibrated on the published row without a
ramp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from backends.families.paced import machine_of
from backends.voice import load_voice
from bench import environment, plots
from bench.arrivals import ClosedLoop
from bench.load import LoadGenerator
from bench.requests import paced_jobs
from bench.rounds import Point
from bench.run import SIMULATED, whole_numbers
from bench.server import BenchServer, ServerPlan, voice_path
from bench.session import Bar, Measured, Plan, measure_load
from bench.table import print_points, shown, terminal, write_csv
from chunk_policies import ChunkSchedule
from chunk_policies.machine import Machine
from chunk_policies.pipeline import Workload
from chunk_policies.simulate import run_arm

CONCURRENCY = 8
MEAN_FRAMES, SPREAD = 125.0, 0.2  # ten seconds; as in the simulator's workload


@dataclass(frozen=True)
class Arm:
    """A chunk schedule: what stands under `stream` in the voice's file."""

    name: str
    stream: Mapping[str, Any]


ARMS = {
    "off": Arm("ramp off, 1 -> 15", {"codec_chunk_frames": 15, "initial_codec_chunk_frames": 1}),
    "static": Arm("static [2,4,8,15]", {"codec_chunk_frames": 15, "codec_chunk_ramp": [2, 4, 8, 15]}),
    "adaptive": Arm(
        "adaptive",
        {
            "codec_chunk_frames": 15,
            "codec_chunk_ramp": [2, 4, 8, 15],
            "codec_chunk_adaptive": True,
            "codec_chunk_min_frames": 4,
        },
    ),
    "dynamic": Arm("dynamic initial", {"codec_chunk_frames": 15, "initial_codec_chunk_dynamic": True}),
}


@dataclass(frozen=True)
class Published:
    """A row of the published table, as it stands there: medians and ranges over the rounds, times in seconds,
    continuity in percent. Its RTF is that after the first packet (docs/ramps.md says why)."""

    rtf: str
    continuity: str
    underrun: str
    ttfp: str


PUBLISHED = {
    "off": Published("0.21-0.22", "0.0", "~0.37", "~1.13"),
    "static": Published("0.26 (0.24-0.27)", "67.5 (60-82.5)", "0.07 (0.04-0.12)", "1.153 (1.018-1.246)"),
}


def server_plan(voice: str, arm: Arm, batched: bool) -> ServerPlan:
    """The voice with the arm's schedule and, as in the published set-up, a codec of one row a call, or as it
    is.

    Eight slots: the dynamic initial chunk goes by the share of slots in use.
    """
    engine: dict[str, Any] = {"max_slots": CONCURRENCY}
    if not batched:
        engine["codec_batch_buckets"] = [1]
    return ServerPlan(voice, {"engine": engine}, stream=arm.stream)


async def measure_arm(
    server: BenchServer, concurrency: int, plan: Plan, bar: Bar, *, label: str, segment_chars: int
) -> Measured:
    jobs = paced_jobs(MEAN_FRAMES, SPREAD, segment_chars)
    async with LoadGenerator(server.url) as generator:
        return await measure_load(
            generator, ClosedLoop(concurrency), plan, jobs, bar, label=label, read_usage=server.usage
        )


def comparison(results: Mapping[tuple[str, bool, int], Point], machine: Machine) -> Table:
    """The published rows, then for each arm what the simulator says of this machine in the product's order of
    codec calls, and what the server did: medians over the rounds, with the smallest and the largest round."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("arm", "codec", "source", "requests"):
        table.add_column(heading)
    for heading in (
        "RTF",
        "RTF after first",
        "continuity %",
        "underrun mean s",
        "TTFP mean s",
        "max underrun s",
    ):
        table.add_column(heading, justify="right")
    for key, row in PUBLISHED.items():
        table.add_row(
            ARMS[key].name,
            "unbatched",
            "published",
            "40",
            "-",
            row.rtf,
            row.continuity,
            row.underrun,
            row.ttfp,
            "-",
        )
    for (key, batched, requests), point in results.items():
        codec = "batched" if batched else "unbatched"
        simulated = simulate(key, batched, machine, len(point.rounds), requests)
        table.add_row(ARMS[key].name, codec, "simulator", str(requests), *simulated)
        table.add_row(
            ARMS[key].name,
            codec,
            "server",
            str(requests),
            ranged(point, "rtf_mean", 1, 3),
            ranged(point, "rtf_after_first", 1, 3),
            ranged(point, "continuity", 100, 1),
            ranged(point, "underrun_mean", 1, 3),
            ranged(point, "ttfp_mean", 1, 3),
            ranged(point, "underrun_max", 1, 3),
        )
    return table


def simulate(key: str, batched: bool, machine: Machine, rounds: int, requests: int) -> list[str]:
    """The same arm in virtual time (chunk_policies.simulate), as cells of the table.

    Nothing but the machine's costs takes time there, and requests have the same spread but are other ones.
    """
    played = machine.changed({"order": "deadline", "codec_batch": CONCURRENCY if batched else 1})
    workload = Workload(concurrency=CONCURRENCY, requests=requests, frames=MEAN_FRAMES, frames_spread=SPREAD)
    schedule = ChunkSchedule.from_mapping(ARMS[key].stream, source=f"arm {key}")
    result = run_arm(key, schedule, played, workload, rounds)
    cells = []
    for measure, factor, digits in (
        ("rtf", 1, 3),
        ("rtf_after_first", 1, 3),
        ("continuous", 100, 1),
        ("underrun", 1, 3),
        ("ttfp", 1, 3),
        ("underrun_max", 1, 3),
    ):
        low, high = result.extremes(measure)
        text = shown(result.median(measure), factor, digits)
        cells.append(
            text if rounds == 1 else f"{text} ({low * factor:.{digits}f}-{high * factor:.{digits}f})"
        )
    return cells


def ranged(point: Point, name: str, factor: float, digits: int) -> str:
    median, span = point.median()[name], point.span(name)
    text = shown(median, factor, digits)
    if span is None or len(point.rounds) == 1:
        return text
    return f"{text} ({shown(span[0], factor, digits)}-{shown(span[1], factor, digits)})"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./tritone bench experiment-8124", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--voice", default="paced-ascend-910b", help="a paced voice (paced-ascend-910b)")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"which schedules ({','.join(ARMS)})")
    parser.add_argument("--codec", default="unbatched,batched", help="which codecs (unbatched,batched)")
    parser.add_argument("--requests", type=whole_numbers, default=[40], metavar="N,N", help="a round (40)")
    parser.add_argument(
        "--rounds",
        type=whole_numbers,
        default=[5],
        metavar="N,N",
        help="rounds that count, for each number of requests, after one cold round (5)",
    )
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY, help="streams at once (8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--csv", type=Path, metavar="FILE")
    parser.add_argument("--plots", type=Path, metavar="DIR")
    return parser


def main(arguments: Sequence[str]) -> int:
    options = build_parser().parse_args(arguments)
    arms, codecs = options.arms.split(","), options.codec.split(",")
    for name, chosen, known in (("--arms", arms, tuple(ARMS)), ("--codec", codecs, ("unbatched", "batched"))):
        if wrong := [one for one in chosen if one not in known]:
            raise ValueError(f"{name} {wrong[0]}: choose among {', '.join(known)}")
    if len(options.rounds) != len(options.requests):
        raise ValueError(
            f"--rounds has {len(options.rounds)} numbers; give as many as --requests has, {len(options.requests)}"
        )
    console = terminal()
    console.print(environment.headline())
    console.print(SIMULATED)
    voice = load_voice(voice_path(options.voice))
    segment_chars, machine = voice.segment_chars, machine_of(voice)
    measured: dict[tuple[str, bool, int], Measured] = {}
    for codec in codecs:
        batched = codec == "batched"
        for key in arms:
            plan = server_plan(options.voice, ARMS[key], batched)
            with BenchServer(plan) as server, Bar() as bar:
                for number, (requests, rounds) in enumerate(
                    zip(options.requests, options.rounds, strict=True)
                ):
                    label = f"{ARMS[key].name}, {codec}, {requests} requests"
                    # The first round on a fresh server is the cold one.
                    counted = Plan(requests, 0, rounds, discard_first=number == 0, seed=options.seed)
                    measured[key, batched, requests] = asyncio.run(
                        measure_arm(
                            server,
                            options.concurrency,
                            counted,
                            bar,
                            label=label,
                            segment_chars=segment_chars,
                        )
                    )
    points = {key: one.point for key, one in measured.items()}
    print_points(console, list(points.values()), f"voice {options.voice}, C{options.concurrency}")
    console.print()
    console.print(comparison(points, machine))
    if options.csv:
        write_csv(options.csv, list(points.values()))
    if options.json:
        document = {
            "notes": [SIMULATED],
            "environment": environment.describe(),
            "published": {key: vars(row) for key, row in PUBLISHED.items()},
            "points": [point.to_dict() for point in points.values()],
        }
        options.json.write_text(json.dumps(document), encoding="utf-8")
    if options.plots:
        for codec in codecs:
            # The last number of requests: more curves cannot be told apart.
            streams = {
                ARMS[key].name: trace
                for (key, batched, requests), one in measured.items()
                if batched == (codec == "batched") and requests == options.requests[-1]
                if (trace := plots.worst(one.traces))
            }
            title = f"worst stream of each arm, {codec} codec, {options.requests[-1]} requests a round"
            plots.plot_buffers(options.plots / f"experiment_8124_{codec}.png", streams, title)
    return int(any(point.faults for point in points.values()))

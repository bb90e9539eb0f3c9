"""`./tritone bench`: load a server and report streaming quality (definitions: client/metrics.py)."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.voice import load_voice
from bench import environment, plots
from bench.arrivals import ClosedLoop, Load, OpenLoop
from bench.load import LoadGenerator
from bench.requests import paced_jobs, read_texts, spoken_jobs
from bench.server import BenchServer, ServerPlan, voice_path
from bench.session import Bar, MakeJobs, Measured, Plan, ReadUsage, measure_load
from bench.table import print_points, terminal, write_csv
from bench.texts import SENTENCES

SIMULATED = "Model time is simulated: a paced voice spends the time of the machine it imitates and no more."


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """How much is measured and where it is written."""
    parser.add_argument(
        "--requests", type=int, default=40, help="requests a round, at least two a client (40)"
    )
    parser.add_argument("--warmup", type=int, default=8, help="requests before the first round (8)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count; medians are reported (3)")
    parser.add_argument(
        "--discard-first",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run one round more and leave the first out (yes)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of texts and arrival times (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, traces included")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the figures of each round")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write plots (PNG) into that folder")


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """What the requests say; read by `jobs_of`."""
    what = parser.add_argument_group("requests")
    what.add_argument("--texts", type=Path, metavar="FILE", help="one text a line, instead of those built in")
    what.add_argument("--mean-frames", type=float, default=125.0, help="paced voices: mean length (125)")
    what.add_argument("--spread", type=float, default=0.3, help="paced voices: spread of lengths (0.3)")
    what.add_argument("--ramp", metavar="N,N|off", help="request parameter codec_chunk_ramp")
    what.add_argument("--adaptive", action="store_true", help="request parameter codec_chunk_adaptive")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./tritone bench",
        description=__doc__,
        epilog="Other measurements: ./tritone bench experiment-8124 | pipeline | peers | growth | verify, "
        "each with --help. docs/benchmarking.md explains them.",
        allow_abbrev=False,
    )
    target = parser.add_argument_group("server")
    target.add_argument("--url", metavar="HOST:PORT", help="a running server; else one is started and ended")
    target.add_argument(
        "--voice", default="wren", help="voice of the server to start, or of that at --url (wren)"
    )
    target.add_argument("--device", default="cpu", help="of the server to start (cpu)")
    target.add_argument("--model", default="tts", help="name of the ensemble (tts)")
    load = parser.add_argument_group("load")
    loop = load.add_mutually_exclusive_group()
    loop.add_argument(
        "--concurrency", type=whole_numbers, default=[1, 4, 8, 16, 32, 64], metavar="N,N", help="closed loop"
    )
    loop.add_argument("--rate", type=numbers, metavar="R,R", help="open loop: Poisson arrivals a second")
    add_request_options(parser)
    add_load_options(parser)
    return parser


def loads_of(options: argparse.Namespace) -> list[Load]:
    if options.rate:
        return [OpenLoop(rate) for rate in options.rate]
    return [ClosedLoop(concurrency) for concurrency in options.concurrency]


def plan_of(options: argparse.Namespace) -> Plan:
    return Plan(options.requests, options.warmup, options.rounds, options.discard_first, options.seed)


def jobs_of(options: argparse.Namespace) -> MakeJobs:
    parameters: dict[str, Any] = {}
    if options.ramp:
        parameters["codec_chunk_ramp"] = options.ramp
    if options.adaptive:
        parameters["codec_chunk_adaptive"] = True
    voice = load_voice(voice_path(options.voice))
    if voice.family == "paced":
        return paced_jobs(options.mean_frames, options.spread, voice.segment_chars, parameters)
    return spoken_jobs(read_texts(options.texts) if options.texts else SENTENCES, parameters)


async def measure_all(
    url: str, model: str, loads: Sequence[Load], plan: Plan, jobs: MakeJobs, read_usage: ReadUsage
) -> list[Measured]:
    with Bar() as bar:
        async with LoadGenerator(url, model) as generator:
            return [
                await measure_load(generator, load, enough(plan, load), jobs, bar, read_usage=read_usage)
                for load in loads
            ]


def enough(plan: Plan, load: Load) -> Plan:
    """At least two requests a client: with fewer than there are clients the load would not be what it is
    called."""
    least = 2 * load.concurrency if isinstance(load, ClosedLoop) else 1
    return replace(plan, requests=max(plan.requests, least))


def write_files(
    options: argparse.Namespace, measured: Sequence[Measured], title: str, notes: Sequence[str]
) -> None:
    """What --json, --csv and --plots ask for."""
    points = [one.point for one in measured]
    if options.csv:
        write_csv(options.csv, points)
    if options.json:
        document = {
            "title": title,
            "notes": list(notes),
            "environment": environment.describe(),
            "points": [
                {**one.point.to_dict(), "traces": [trace.to_dict() for trace in one.traces]}
                for one in measured
            ],
        }
        options.json.write_text(json.dumps(document), encoding="utf-8")
    if options.plots:
        streams = {one.point.label: trace for one in measured if (trace := plots.worst(one.traces))}
        plots.plot_buffers(
            options.plots / "worst_streams.png", streams, f"{title}: worst stream of each load"
        )
        plots.plot_loads(options.plots / "loads.png", points, title)


def main(arguments: Sequence[str]) -> int:
    options = build_parser().parse_args(arguments)
    jobs, plan, loads = jobs_of(options), plan_of(options), loads_of(options)
    console = terminal()
    console.print(environment.headline())
    paced = load_voice(voice_path(options.voice)).family == "paced"
    title = f"voice {options.voice}" + (", simulated model time" if paced else "")
    if paced:
        console.print(SIMULATED)
    with ExitStack() as stack:
        if options.url:
            measured = asyncio.run(measure_all(options.url, options.model, loads, plan, jobs, dict))
        else:
            server = stack.enter_context(BenchServer(ServerPlan(options.voice, device=options.device)))
            measured = asyncio.run(measure_all(server.url, options.model, loads, plan, jobs, server.usage))
    print_points(
        console,
        [one.point for one in measured],
        f"{title}, at least {plan.requests} requests a round, median of {plan.rounds} round(s)",
    )
    write_files(options, measured, title, [SIMULATED] if paced else [])
    return int(any(one.point.faults for one in measured))

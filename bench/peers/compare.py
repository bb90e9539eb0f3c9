"""`./tritone bench peers`: the same paced talker and codec under other orchestrations, in one run on one
machine.

ours: orchestrator in the talker's process, ensemble, batch former. polling: as the CosyVoice runtime for
Triton does it, an `execute` that blocks for the whole request, a thread that collects tokens one response
each, a look every 20 ms, a vocoder that takes one request a call; four instances, as its start script sets,
and one instance a stream. frame BLS: a thread a stream, one response a frame, the codec batched by Triton.
All use the same chunk ladder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import environment
from bench.arrivals import ClosedLoop
from bench.load import LoadGenerator
from bench.peers.plans import FRAME_BLS, POLLING
from bench.pipeline import OURS, Throughput, measure, ratios, throughput_table
from bench.requests import paced_jobs
from bench.rounds import Point
from bench.run import SIMULATED, whole_numbers
from bench.server import BenchError, BenchServer, ServerPlan
from bench.session import Bar, Plan, measure_load
from bench.table import print_points, shown, terminal

LADDER = {"codec_chunk_frames": 15, "codec_chunk_ramp": [2, 4, 8, 15]}
SYSTEMS = ("ours", "polling", "polling, instance a stream", "frame BLS")
TIMEOUT = 60.0


@dataclass(frozen=True)
class Result:
    """A system at one concurrency: a point, or why there is none."""

    system: str
    concurrency: int
    point: Point | None
    died: str | None


@contextmanager
def plan_of(system: str, voice: str, concurrency: int) -> Iterator[ServerPlan]:
    """What to start for a system; a repository with another number of instances exists only meanwhile."""
    if system == "ours":
        yield ServerPlan(voice, stream=LADDER)
    elif system == "frame BLS":
        yield replace(FRAME_BLS, voice=voice, stream=LADDER)
    elif system == "polling":
        yield replace(POLLING, voice=voice, stream=LADDER)
    else:
        assert POLLING.repository is not None
        with TemporaryDirectory(prefix="tritone-bench-") as folder:
            repository = Path(folder) / "repository"
            shutil.copytree(POLLING.repository, repository)
            config = repository / "tts" / "config.pbtxt"
            text = config.read_text().replace("count: 4", f"count: {concurrency}")
            config.write_text(text)
            yield replace(POLLING, voice=voice, stream=LADDER, repository=repository)


async def measure_point(server: BenchServer, label: str, concurrency: int, plan: Plan) -> Point:
    jobs = paced_jobs(60.0, 0.3, 300)
    async with LoadGenerator(server.url, timeout=TIMEOUT) as generator:
        measured = await measure_load(
            generator, ClosedLoop(concurrency), plan, jobs, Bar(), label=label, read_usage=server.usage
        )
    return measured.point


def measure_system(system: str, voice: str, concurrency: int, plan: Plan) -> Result:
    """On a server of its own; a server that dies or hangs is a result too."""
    label = f"{system}, C{concurrency}"
    try:
        with plan_of(system, voice, concurrency) as started, BenchServer(started) as server:
            point = asyncio.run(measure_point(server, label, concurrency, plan))
            failed = sum(point.errors().values())
            died = None
            if server.died:
                died = "the server died"
            elif failed:
                died = f"{failed} requests failed or hung"
            return Result(system, concurrency, point, died)
    except BenchError as error:
        return Result(system, concurrency, None, str(error))


def told(result: Result) -> str:
    """A line for a long run that is watched."""
    ttfp = result.point.median()["ttfp_p50"] if result.point else None
    return f"{result.system}, C{result.concurrency}: TTFP p50 {shown(ttfp, 1000, 0)} ms; {result.died or 'complete'}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./tritone bench peers", description=__doc__, allow_abbrev=False)
    parser.add_argument("--voice", default="paced-h100", help="a paced voice (paced-h100)")
    parser.add_argument("--systems", help=f"which, separated by ';' ({';'.join(SYSTEMS)})")
    parser.add_argument("--concurrency", type=whole_numbers, default=[1, 4, 8, 32], metavar="N,N")
    parser.add_argument("--requests", type=int, default=40, help="a round (40)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ceiling", type=whole_numbers, default=[1, 4, 32], metavar="N,N", help="0 for none")
    parser.add_argument(
        "--total", type=int, default=10_000, help="frames a measurement of the ceiling (10000)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    systems = options.systems.split(";") if options.systems else SYSTEMS
    if wrong := [system for system in systems if system not in SYSTEMS]:
        raise ValueError(f"--systems {wrong[0]}: choose among {'; '.join(SYSTEMS)}")
    console = terminal()
    console.print(environment.headline())
    console.print(SIMULATED)
    results = []
    for concurrency in options.concurrency:
        for system in systems:
            if system == "polling, instance a stream" and concurrency == 1:
                continue  # the four instances do for one stream
            plan = Plan(max(options.requests, concurrency), min(8, concurrency), options.rounds)
            results.append(measure_system(system, options.voice, concurrency, plan))
            console.print(told(results[-1]))
    print_points(console, [r.point for r in results if r.point], f"voice {options.voice}, one ladder for all")
    for result in results:
        if result.died:
            console.print(f"{result.system}, C{result.concurrency}: {result.died}")
    ceilings: list[Throughput] = []
    if options.ceiling != [0]:
        for system, plan_ in (("ours", OURS), ("polling", POLLING), ("frame BLS", FRAME_BLS)):
            ceilings += measure(system, plan_, options.ceiling, 250, options.total)
        console.print(throughput_table(ceilings))
        for line in ratios(ceilings):
            console.print(line)
    if options.json:
        document = {
            "notes": [SIMULATED],
            "environment": environment.describe(),
            "points": [
                {
                    "system": r.system,
                    "concurrency": r.concurrency,
                    "died": r.died,
                    "point": r.point.to_dict() if r.point else None,
                }
                for r in results
            ],
            "ceilings": [asdict(c) for c in ceilings],
        }
        options.json.write_text(json.dumps(document), encoding="utf-8")
    return 0

"""`./tritone bench growth`: more streams and longer texts on the bare pipeline: throughput, memory, shared
memory.

One server for all points of a series, so that what one leaves behind shows in the next; the first point is
run again at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from backends.families.paced import SAMPLES_PER_FRAME
from bench import environment
from bench.load import LoadGenerator
from bench.pipeline import OURS, requests
from bench.processes import cpu_between
from bench.run import SIMULATED, numbers, whole_numbers
from bench.server import BenchError, BenchServer
from bench.table import shown, terminal

FRAME_SECONDS = 0.08


@dataclass(frozen=True)
class Growth:
    """One load. memory_megabytes: resident, of each process, after it."""

    streams: int
    seconds_each: float
    frames_per_second: float
    cpu_microseconds: float
    first_p50_seconds: float
    memory_megabytes: dict[str, float]
    shared_memory_megabytes: float


async def grow(server: BenchServer, streams: int, seconds: float, total: int) -> Growth:
    frames = max(1, round(seconds / FRAME_SECONDS))
    count = max(streams, -(-total // (frames * streams)) * streams)
    before = server.usage()
    async with LoadGenerator(server.url) as generator:
        counted = await generator.count(requests(count, frames), streams)
    after = server.usage()
    if counted.errors:
        raise BenchError(f"{streams} streams of {seconds:g} s: {counted.errors[0]}")
    made = counted.samples / SAMPLES_PER_FRAME
    return Growth(
        streams=streams,
        seconds_each=seconds,
        frames_per_second=made / counted.wall_seconds,
        cpu_microseconds=1e6 * sum(cpu_between(before, after).values()) / made,
        first_p50_seconds=sorted(counted.first_seconds)[len(counted.first_seconds) // 2],
        memory_megabytes={name: usage.memory_megabytes for name, usage in sorted(after.items())},
        shared_memory_megabytes=server.shared_memory_megabytes(),
    )


def growth_table(results: Sequence[Growth]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    processes = list(results[0].memory_megabytes)
    headings = ("streams", "text s", "frames/s", "CPU us/frame", "first packet p50 ms")
    for heading in (*headings, *(f"{name} MB" for name in processes), "/dev/shm MB"):
        table.add_column(heading, justify="right")
    for r in results:
        table.add_row(
            str(r.streams),
            f"{r.seconds_each:g}",
            shown(r.frames_per_second, 1, 0),
            shown(r.cpu_microseconds, 1, 0),
            shown(r.first_p50_seconds, 1000, 1),
            *(shown(r.memory_megabytes.get(name), 1, 0) for name in processes),
            shown(r.shared_memory_megabytes, 1, 1),
        )
    return table


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./tritone bench growth", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--streams",
        type=whole_numbers,
        default=[1, 4, 16, 64, 128, 256],
        metavar="N,N",
        help="of --length each",
    )
    parser.add_argument("--length", type=float, default=20.0, help="seconds of text while streams grow (20)")
    parser.add_argument(
        "--lengths", type=numbers, default=[1, 10, 60, 300, 600], metavar="S,S", help="at --at streams each"
    )
    parser.add_argument("--at", type=int, default=8, help="streams while lengths grow (8)")
    parser.add_argument("--total", type=int, default=20_000, help="frames a point, at least (20000)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    console = terminal()
    console.print(environment.headline())
    console.print(SIMULATED)
    series = (
        [(streams, options.length) for streams in (*options.streams, options.streams[0])],
        [(options.at, seconds) for seconds in (*options.lengths, options.lengths[0])],
    )
    found = []
    for points in series:
        with BenchServer(OURS) as server:
            results = [asyncio.run(grow(server, n, seconds, options.total)) for n, seconds in points]
        console.print(growth_table(results))
        console.print()
        found += results
    if options.json:
        document = {"environment": environment.describe(), "points": [asdict(r) for r in found]}
        options.json.write_text(json.dumps(document), encoding="utf-8")
    return 0

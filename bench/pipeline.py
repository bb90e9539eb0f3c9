"""`./tritone bench pipeline`: what the bare pipeline costs, with models that cost nothing.

Three questions: how many frames a second, how much CPU a frame, and how much later than the talker's own time
the first packet comes. Beside it, in the same run, one frame a response through BLS, the shape in which
Triton's TTS repositories orchestrate; it does not survive every load on every release of Triton, and its
deaths are told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.table import Table
from tritonclient.grpc import service_pb2 as pb

from backends.families.paced import SAMPLES_PER_FRAME
from backends.family import load_family
from backends.graphs import capture_for
from backends.talker import SpeechRequest
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import VoiceConfig, load_voice
from bench import environment
from bench.arrivals import ClosedLoop
from bench.load import LoadGenerator
from bench.paced_audio import PacedCheck
from bench.peers.plans import FRAME_BLS
from bench.processes import cpu_between
from bench.requests import paced_jobs
from bench.run import SIMULATED, whole_numbers
from bench.server import BenchError, BenchServer, ServerPlan, changed_voice
from bench.table import shown, terminal
from bench.texts import texts_of_length
from client.request import new_stream_id, speech_request

OURS = ServerPlan("paced-zero")
# Talkers that take 16 ms a step (the h100 preset's) over a codec that costs nothing.
STEPPED = ServerPlan("paced-zero", {"options": {"machine": "free", "costs": {"step": 0.016}}})


@dataclass(frozen=True)
class Throughput:
    """One system at one concurrency. cpu_microseconds: of the server's processes together, a frame.
    died: why there are no figures, or only of a part of the streams."""

    system: str
    concurrency: int
    frames_per_second: float | None
    cpu_microseconds: float | None
    client_cpu_share: float | None
    first_p50_seconds: float | None
    cpu_by_process: Mapping[str, float]
    died: str | None = None


def requests(count: int, frames: int) -> Iterable[pb.ModelInferRequest]:
    """Requests for `frames` frames each."""
    for tag, text in enumerate(texts_of_length([frames] * count), start=1):
        yield speech_request("tts", new_stream_id(), text, {"seed": tag})


async def throughput(
    server: BenchServer, system: str, concurrency: int, frames: int, total: int
) -> Throughput:
    """Run at least `total` frames through the server at that concurrency, after a short warm-up."""
    streams = max(concurrency, -(-total // (frames * concurrency)) * concurrency)
    async with LoadGenerator(server.url, timeout=30.0) as generator:
        await generator.count(requests(concurrency, frames), concurrency)
        before = server.usage()
        counted = await generator.count(requests(streams, frames), concurrency)
        spent = cpu_between(before, server.usage())
    made = counted.samples / SAMPLES_PER_FRAME
    died = None
    if counted.errors:
        died = f"{len(counted.errors)} of {streams} streams failed: {counted.errors[0]}"
    if not counted.first_seconds:
        return Throughput(system, concurrency, None, None, None, None, {}, died)
    return Throughput(
        system=system,
        concurrency=concurrency,
        frames_per_second=made / counted.wall_seconds,
        cpu_microseconds=1e6 * sum(spent.values()) / made,
        client_cpu_share=counted.cpu_seconds / counted.wall_seconds,
        first_p50_seconds=statistics.median(counted.first_seconds),
        cpu_by_process={name: 1e6 * seconds / made for name, seconds in sorted(spent.items())},
        died=died,
    )


def measure(
    system: str, plan: ServerPlan, concurrencies: Sequence[int], frames: int, total: int
) -> list[Throughput]:
    """Each concurrency on a server of its own, so that one that dies takes no other figure with it."""
    found = []
    for concurrency in concurrencies:
        try:
            with BenchServer(plan) as server:
                result = asyncio.run(throughput(server, system, concurrency, frames, total))
                if server.died:
                    result = Throughput(**{**asdict(result), "died": f"the server died; {result.died}"})
        except BenchError as error:
            result = Throughput(system, concurrency, None, None, None, None, {}, str(error))
        found.append(result)
    return found


@dataclass(frozen=True)
class FirstPacket:
    """First packets at one concurrency, seconds. ttfp_p50, ttfp_p95: through the server. alone_p50: the
    talker engine by itself in this process under the same load, from a prompt's arrival to the last frame of
    the first chunk. after_p50, after_p95: the part of the time through the server that comes after that frame
    was made.
    """

    concurrency: int
    ttfp_p50: float
    ttfp_p95: float
    alone_p50: float
    after_p50: float
    after_p95: float
    requests: int

    @property
    def added_p50(self) -> float:
        return self.ttfp_p50 - self.alone_p50


FIRST_JOBS = paced_jobs(25.0, 0.3, 300)


async def first_packets(url: str, concurrency: int, count: int, alone_p50: float) -> FirstPacket:
    async with LoadGenerator(url) as generator:
        await generator.run(ClosedLoop(concurrency), FIRST_JOBS(8, 1))
        done = await generator.run(ClosedLoop(concurrency), FIRST_JOBS(count, 0))
    ttfp, after = [], []
    for outcome in done.outcomes:
        check = outcome.check
        assert isinstance(check, PacedCheck)
        if outcome.fault or check.made_to_arrival is None or outcome.metrics.ttfp_seconds is None:
            raise BenchError(f"a stream failed: {outcome.fault or outcome.trace.error_message}")
        ttfp.append(outcome.metrics.ttfp_seconds)
        after.append(check.made_to_arrival)
    p50, p95 = np.percentile(ttfp, [50, 95]).tolist()
    after_p50, after_p95 = np.percentile(after, [50, 95]).tolist()
    return FirstPacket(concurrency, p50, p95, alone_p50, after_p50, after_p95, len(ttfp))


def talker_alone(plan: ServerPlan, concurrency: int, count: int, first_chunk: int) -> float:
    """Median time from a prompt's arrival until the talker engine alone has made the first chunk's frames.

    The same closed loop without a server: a stream that ends is followed by another, which arrives at a
    random moment of the step then running, as requests do.
    """
    voice = load_voice_of(plan)
    family = load_family(voice.family)
    cpu = torch.device("cpu")
    talker = family.load_talker(voice, cpu)
    engine = TalkerEngine(talker, voice.engine, capture=capture_for(cpu))
    engine.warm_up(lambda done, total: None)
    source = random.Random(0)
    arrived: dict[SpeechStream, float] = {}
    made: dict[SpeechStream, int] = {}
    times: list[float] = []
    jobs = iter(FIRST_JOBS(count + concurrency, 0))
    last_step = 0.0

    def arrive(during: float) -> None:
        job = next(jobs, None)
        if job is None:
            return
        request = SpeechRequest(job.text, seed=int(job.options["seed"]))
        stream = SpeechStream(request, more_prompts=False, text_ended=True)
        stream.prompts.append(talker.build_prompt(request, job.text, True))
        engine.admit(stream)
        arrived[stream] = time.perf_counter() - source.random() * during
        made[stream] = 0

    for _ in range(concurrency):
        arrive(0.0)
    ended = 0
    while engine.active:
        began = time.perf_counter()
        step = engine.step()
        now = time.perf_counter()
        last_step = now - began
        for stream in step.streams:
            made[stream] += 1
            if made[stream] == first_chunk:
                times.append(now - arrived[stream])
        while ended:
            arrive(last_step)
            ended -= 1
        ended = len(step.ended)
    return statistics.median(times)


def load_voice_of(plan: ServerPlan) -> VoiceConfig:
    """The voice that a server of this plan would load."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "voice.yaml"
        path.write_text(yaml.safe_dump(changed_voice(plan)), encoding="utf-8")
        return load_voice(path)


def throughput_table(results: Sequence[Throughput]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("system")
    for heading in ("streams", "frames/s", "CPU us/frame", "client CPU %", "first packet p50 ms"):
        table.add_column(heading, justify="right")
    table.add_column("CPU us/frame by process, or what went wrong")
    for r in results:
        parts = ", ".join(f"{name} {value:.0f}" for name, value in r.cpu_by_process.items())
        table.add_row(
            r.system,
            str(r.concurrency),
            shown(r.frames_per_second, 1, 0),
            shown(r.cpu_microseconds, 1, 0),
            shown(r.client_cpu_share, 100, 0),
            shown(r.first_p50_seconds, 1000, 1),
            "; ".join(filter(None, [parts, r.died])),
        )
    return table


def ratios(results: Sequence[Throughput]) -> list[str]:
    """Ours over per-frame BLS: at each concurrency both survived, and at each one's best."""
    lines = []
    best: dict[str, float] = {}
    by_load: dict[int, dict[str, float]] = {}
    for r in results:
        if r.frames_per_second is not None and r.died is None:
            by_load.setdefault(r.concurrency, {})[r.system] = r.frames_per_second
            best[r.system] = max(best.get(r.system, 0.0), r.frames_per_second)
    for concurrency, speeds in sorted(by_load.items()):
        if {"ours", "frame BLS"} <= speeds.keys():
            lines.append(f"{concurrency} streams: {speeds['ours'] / speeds['frame BLS']:.1f} x per-frame BLS")
    if {"ours", "frame BLS"} <= best.keys():
        lines.append(f"best over best: {best['ours'] / best['frame BLS']:.1f} x per-frame BLS")
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./tritone bench pipeline", description=__doc__, allow_abbrev=False)
    parser.add_argument("--concurrency", type=whole_numbers, default=[1, 32, 128, 256], metavar="N,N")
    parser.add_argument(
        "--bls-concurrency", type=whole_numbers, default=[1, 4, 8, 16, 32, 128], metavar="N,N"
    )
    parser.add_argument("--frames", type=int, default=250, help="frames a stream (250)")
    parser.add_argument("--total", type=int, default=60_000, help="frames a measurement, at least (60000)")
    parser.add_argument("--bls-total", type=int, default=10_000, help="the same for per-frame BLS (10000)")
    parser.add_argument("--first", type=int, default=100, help="requests for the first-packet time (100)")
    parser.add_argument("--only", choices=("throughput", "first"), help="one part only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    console = terminal()
    console.print(environment.headline())
    console.print(SIMULATED)
    results: list[Throughput] = []
    packets: list[FirstPacket] = []
    if options.only != "first":
        results = measure("ours", OURS, options.concurrency, options.frames, options.total)
        results += measure("frame BLS", FRAME_BLS, options.bls_concurrency, options.frames, options.bls_total)
        console.print(throughput_table(results))
        for line in ratios(results):
            console.print(line)
    if options.only != "throughput":
        first_chunk = load_voice_of(STEPPED).stream.ramp[0]
        for concurrency in (1, 8):
            alone = talker_alone(STEPPED, concurrency, options.first, first_chunk)
            with BenchServer(STEPPED) as server:
                packets.append(asyncio.run(first_packets(server.url, concurrency, options.first, alone)))
        for packet in packets:
            console.print(
                f"first packet, C{packet.concurrency}: p50 {1000 * packet.ttfp_p50:.1f} ms, "
                f"p95 {1000 * packet.ttfp_p95:.1f} ms; the talker alone {1000 * packet.alone_p50:.1f} ms, so "
                f"{1000 * packet.added_p50:.1f} ms are added; from its last frame to the client "
                f"{1000 * packet.after_p50:.1f} ms (p95 {1000 * packet.after_p95:.1f}); {packet.requests} requests"
            )
    if options.json:
        document: dict[str, Any] = {
            "environment": environment.describe(),
            "throughput": [asdict(r) for r in results],
            "first_packets": [{**asdict(p), "added_p50": p.added_p50} for p in packets],
        }
        options.json.write_text(json.dumps(document), encoding="utf-8")
    return 0

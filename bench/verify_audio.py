"""`./tritone bench verify`: streams utterances under load and examines every sample that comes back.

Complete, no digital silence, no segment twice, chunk boundaries like the inside of chunks, channels alike;
and equal to the whole decode of the same codes, which this process makes itself from the same text and seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.table import Table

from backends.voice import load_voice
from bench import environment
from bench.arrivals import ClosedLoop
from bench.audio_faults import Audio, Findings, examine
from bench.load import Job, LoadGenerator, Round
from bench.run import add_request_options, jobs_of
from bench.server import BenchServer, ServerPlan, voice_path
from bench.table import terminal
from bench.whole_decode import WholeDecoder
from client.audio import AudioChunk


@dataclass
class Recording:
    """Keeps one stream's audio (an `AudioCheck` that finds nothing itself)."""

    fault: str | None = None
    chunks: list[AudioChunk] = field(default_factory=list)

    def chunk(self, chunk: AudioChunk) -> None:
        self.chunks.append(chunk)

    def end(self) -> None:
        """Nothing to do: the audio is examined later."""

    @property
    def samples(self) -> Audio:
        return np.concatenate([chunk.samples for chunk in self.chunks])

    @property
    def boundaries(self) -> list[int]:
        return [chunk.first_sample for chunk in self.chunks[1:] if len(chunk.samples)]

    @property
    def frames(self) -> int:
        return sum(chunk.frames for chunk in self.chunks)


@dataclass(frozen=True)
class Verified:
    """One utterance and what was found in it."""

    text: str
    findings: Findings
    frames: int
    chunks: int
    error: str | None = None


async def record(url: str, jobs: Sequence[Job], concurrency: int) -> tuple[Round, list[Recording]]:
    recordings = [Recording() for _ in jobs]
    recorded = [Job(job.text, job.options, check) for job, check in zip(jobs, recordings, strict=True)]
    async with LoadGenerator(url) as generator:
        return await generator.run(ClosedLoop(concurrency), recorded), recordings


def verify(
    voice_file: Path, jobs: Sequence[Job], done: Round, recordings: Sequence[Recording]
) -> list[Verified]:
    """Examine all recordings; the paced voices' signal, which is no sound, only sample by sample."""
    decoder = WholeDecoder(voice_file)
    spec, tail = decoder.codec.spec, decoder.codec.tail_loss
    results = []
    for job, outcome, recording in zip(jobs, done.outcomes, recordings, strict=True):
        if not outcome.trace.succeeded or not recording.chunks:
            error = outcome.trace.error_message or "no audio came"
            results.append(Verified(job.text, Findings(()), 0, 0, error))
            continue
        whole = decoder.decode(decoder.frames(job.text, **job.options))
        findings = examine(
            recording.samples,
            spec.sample_rate,
            recording.boundaries,
            expected_samples=recording.frames * spec.samples_per_frame - tail,
            whole=whole,
        )
        results.append(Verified(job.text, findings, recording.frames, len(recording.chunks)))
    return results


def report_table(results: Sequence[Verified]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("text")
    for heading in ("frames", "chunks", "off the whole decode by", "level ratio"):
        table.add_column(heading, justify="right")
    table.add_column("faults")
    for result in results:
        figures = result.findings.figures
        table.add_row(
            result.text[:40],
            str(result.frames),
            str(result.chunks),
            f"{figures['largest_difference']:.1e}" if "largest_difference" in figures else "-",
            f"{figures['largest_level_ratio']:.2f}" if "largest_level_ratio" in figures else "-",
            result.error or "; ".join(map(str, result.findings.faults)) or "none",
        )
    return table


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./tritone bench verify", description=__doc__, allow_abbrev=False)
    parser.add_argument("--url", metavar="HOST:PORT", help="a running server; else one is started and ended")
    parser.add_argument("--voice", default="wren", help="voice of the server (wren)")
    parser.add_argument("--device", default="cpu", help="of the server to start (cpu)")
    parser.add_argument("--concurrency", type=int, default=8, help="streams at once (8)")
    parser.add_argument("--requests", type=int, default=16, help="utterances (16)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    add_request_options(parser)
    options = parser.parse_args(arguments)
    path = voice_path(options.voice)
    if load_voice(path).family == "paced":
        raise ValueError(
            "a paced voice's audio is checked by every measurement; verify is for voices that speak"
        )
    jobs = jobs_of(options)(options.requests, 0)
    console = terminal()
    console.print(environment.headline())
    with ExitStack() as stack:
        url = options.url
        if url is None:
            url = stack.enter_context(BenchServer(ServerPlan(options.voice, device=options.device))).url
        done, recordings = asyncio.run(record(url, jobs, options.concurrency))
    results = verify(path, jobs, done, recordings)
    console.print(report_table(results))
    bad = sum(bool(result.error or result.findings.faults) for result in results)
    console.print(f"{len(results)} utterances at C{options.concurrency}, {bad} with faults")
    if options.json:
        document = [
            {
                "text": result.text,
                "error": result.error,
                "faults": list(map(str, result.findings.faults)),
                **result.findings.figures,
            }
            for result in results
        ]
        options.json.write_text(json.dumps(document), encoding="utf-8")
    return int(bad > 0)

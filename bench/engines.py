"""`python -m bench.engines`: what the two engines of a voice do on this machine, without a server.

For each batch: talker frames a second and codec seconds of audio a second, both through the engines and
their graph runners, beside the time that the same matrix products take alone on the same machine. Then the
memory of a slot. `--fifo` instead compares the orders in which chunks are decoded, in simulated time (see
bench/deadlines.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from backends.codec import Codec
from backends.codec_engine import CodecEngine, CodecJob
from backends.family import load_family
from backends.graphs import GraphRunner, capture_for
from backends.talker import SamplingParameters, SpeechRequest, Talker
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import VoiceConfig, load_voice
from bench import deadlines
from bench.environment import describe, headline
from bench.matrix_limit import matrix_limit, median_seconds
from bench.table import terminal
from launcher.settings import ROOT

TEXT = (
    "The quick brown fox jumps over the lazy dog while the band plays on. It was a bright cold day in April, "
    "and the clocks were striking thirteen. Nobody had ever seen the sea so calm, nor the sky so wide. "
)


@dataclass(frozen=True)
class Measured:
    """One engine at one batch. Times are of one call, in seconds.

    audio: seconds of audio that a call makes, all rows together. engine: the engine's round, the model's
        call in it.
    model: the model's call alone. products: its matrix products alone. operations: floating-point, of the
        call.
    """

    batch: int
    frames: int
    audio: float
    engine: float
    model: float
    products: float
    operations: float

    def row(self) -> list[str]:
        frames = self.batch * self.frames
        return [
            str(self.batch),
            str(self.frames),
            f"{self.engine * 1e3:.2f}",
            f"{self.model * 1e3:.2f}",
            f"{self.products * 1e3:.2f}",
            f"{frames / self.engine:.0f}",
            f"{frames / self.products:.0f}",
            f"{self.audio / self.engine:.1f}",
            f"{self.audio / self.engine / self.batch:.1f}",
            f"{self.operations / self.engine / 1e9:.1f}",
            f"{self.operations / self.products / 1e9:.1f}",
        ]


HEADINGS = (
    "B", "T", "engine ms", "model ms", "products ms", "frames/s", "limit frames/s", "x real time", "a stream",
    "GFLOP/s", "limit",
)  # fmt: skip


class TalkerBench:
    """A talker engine kept busy with `batch` streams of English text."""

    def __init__(self, talker: Talker, voice: VoiceConfig, batch: int) -> None:
        self.talker, self.batch = talker, batch
        config = dataclasses.replace(
            voice.engine, max_slots=batch, queue=batch, talker_batch_buckets=(batch,)
        )
        self.engine = TalkerEngine(talker, config, capture=capture_for(talker.device))
        self.engine.warm_up(lambda done, total: None)
        self.frames: list[np.ndarray] = []
        chosen = {k: v for k, v in voice.sampling.items() if k in {"temperature", "top_k", "top_p"}}
        self._sampling: SamplingParameters = dataclasses.replace(talker.defaults, **chosen)  # type: ignore[arg-type]
        self._admitted = 0

    def _fill(self) -> None:
        while self.engine.active + self.engine.queued < self.batch:
            request = SpeechRequest(
                TEXT, seed=self._admitted, sampling=self._sampling, max_frames=10**6,
                speaker=self.talker.speakers[0] if self.talker.speakers else None,
            )  # fmt: skip
            prompt = self.talker.build_prompt(request, TEXT, True)
            self.engine.admit(SpeechStream(request, deque([prompt]), more_prompts=False, text_ended=True))
            self._admitted += 1

    def measure(self, seconds: float) -> Measured:
        """Time steps in which all rows were stepped and nothing was prefilled."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        runs = -1
        while time.perf_counter() < end or len(times) < 10:
            self._fill()
            begin = time.perf_counter()
            step = self.engine.step()
            elapsed = time.perf_counter() - begin
            if self.engine.counters.prefill_runs == runs and len(step.streams) == self.batch:
                times.append(elapsed)
                self.frames.append(step.frames)
            runs = self.engine.counters.prefill_runs
        model, products, operations = _model_times(self.engine.runner, self.talker.device)
        spec = self.talker.spec
        audio = self.batch * spec.seconds / spec.steps_per_frame
        return Measured(self.batch, 1, audio, float(np.median(times)), model, products, operations)


def _model_times(runner: GraphRunner[tuple[int, int]], device: torch.device) -> tuple[float, float, float]:
    """Of the key that was run last: the call alone, its products alone, its operations."""
    key = runner.last_key
    assert key is not None
    runner.make_idle(key)  # streams must not be stepped behind the engine's back
    model = median_seconds(lambda: runner.run(key), device, 20)
    function, inputs = runner.eager(key), runner.inputs(key)
    products, operations = matrix_limit(lambda: function(*inputs.tensors), device)
    return model, products, operations


def measure_codec(
    codec: Codec, voice: VoiceConfig, batch: int, size: int, frames: np.ndarray, seconds: float
) -> Measured:
    """A codec engine with `batch` streams that send chunks of `size` frames, out of frames [n, width]."""
    config = dataclasses.replace(
        voice.engine, codec_slots=batch, codec_batch_buckets=(batch,), max_slots=batch
    )
    engine = CodecEngine(codec, config, [size], capture=capture_for(codec.device))
    engine.warm_up(lambda done, total: None)
    times: list[float] = []
    end = time.perf_counter() + seconds
    index = 0
    while time.perf_counter() < end or len(times) < 5:
        for key in range(batch):
            place = ((index * batch + key) * size) % max(1, len(frames) - size)
            chunk = frames[place : place + size]
            engine.submit(CodecJob(key, index, chunk, 0, index * size, False, 0.0))
        index += 1
        begin = time.perf_counter()
        rows = 0
        while jobs := engine.form_batch():
            for result in engine.decode(jobs):
                if result.error is not None:
                    raise result.error
                rows += 1
        elapsed = time.perf_counter() - begin
        if rows == batch and index > 2:
            times.append(elapsed)
    model, products, operations = _model_times(engine.runner, codec.device)
    return Measured(
        batch, size, batch * size * codec.spec.seconds, float(np.median(times)), model, products, operations
    )


def print_table(console: Console, title: str, points: list[Measured]) -> None:
    console.print(title, style="bold")
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for point in points:
        table.add_row(*point.row())
    console.print(table)


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    voice = load_voice(arguments.voice)
    device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads or voice.engine.threads or torch.get_num_threads())
    family = load_family(voice.family)
    talker, codec = family.load_talker(voice, device), family.load_codec(voice, device)
    console.print(headline())
    console.print(
        f"voice {voice.name}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    console.print(
        "products: the call's matrix products and convolutions alone, same shapes, same machine; "
        "limit: what the machine would do if a call were nothing else"
    )
    talkers, frames = [], []
    for batch in arguments.batches:
        bench = TalkerBench(talker, voice, batch)
        talkers.append(bench.measure(arguments.seconds))
        frames += bench.frames
    print_table(console, "talker, one step", talkers)
    made = np.concatenate(frames)
    codecs: dict[int, list[Measured]] = {}
    for size in arguments.frames or [
        voice.stream.frame_sizes("state")[0],
        voice.stream.frame_sizes("state")[-1],
    ]:
        codecs[size] = [
            measure_codec(codec, voice, batch, size, made, arguments.seconds) for batch in arguments.batches
        ]
        print_table(console, f"codec, chunks of {size} frames", codecs[size])
    talker.allocate(voice.engine.max_slots, voice.engine.max_length)
    codec.allocate(1)
    console.print(
        f"memory a slot: talker {talker.slot_bytes() / 1024:.1f} KiB "
        f"(max_length {voice.engine.max_length}), codec {codec.slot_bytes() / 1024:.1f} KiB"
    )
    return {
        "environment": describe(),
        "voice": voice.name,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "talker": [dataclasses.asdict(p) for p in talkers],
        "codec": {size: [dataclasses.asdict(p) for p in points] for size, points in codecs.items()},
        "slot_bytes": {"talker": talker.slot_bytes(), "codec": codec.slot_bytes()},
    }


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description=__doc__)
    parser.add_argument("--voice", type=Path, default=ROOT / "voices" / "wren.yaml")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--threads", type=int, default=0, help="0: as the voice says")
    parser.add_argument("--batches", type=numbers, default=[1, 4, 8, 16, 32], help="comma-separated")
    parser.add_argument(
        "--frames", type=numbers, default=None, help="codec chunk sizes; first and last of the ladder"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--fifo", action="store_true", help="compare decoding orders instead")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    parsed = parse(arguments)
    console = terminal()
    report = deadlines.compare(console) if parsed.fifo else measure(parsed, console)
    if parsed.json:
        parsed.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

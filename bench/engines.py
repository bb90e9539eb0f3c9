"""`python -m bench.engines`: what the two engines of a voice do on this machine, without a server.

For each batch: talker frames a second and codec seconds of audio a second, both through the engines and
their graph runners, beside the time that the same matrix products take alone on the same machine. Then the
memory of a slot. `--fifo` instead compares the orders in which chunks are decoded, in simulated time (see
bench/deadlines.py); `--memory` measures what a stream takes (see bench/slot_memory.py);
`--against-reference` compares Qwen3-TTS with its reference package (see bench/qwen3_reference.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import deque
from collections.abc import Callable
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
from backends.graphs import EagerCapture, GraphRunner, capture_for
from backends.talker import SamplingParameters, SpeechRequest, Talker
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import EngineConfig, VoiceConfig, load_voice
from bench import deadlines, qwen3_reference, slot_memory
from bench.environment import describe, headline
from bench.matrix_limit import matrix_limit, median_seconds
from bench.table import terminal
from launcher.settings import ROOT

TEXT = (
    "The quick brown fox jumps over the lazy dog while the band plays on. It was a bright cold day in April, "
    "and the clocks were striking thirteen. Nobody had ever seen the sea so calm, nor the sky so wide. "
)


Clock = Callable[[], float]


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

    def __init__(self, talker: Talker, voice: VoiceConfig, batch: int, clock: Clock) -> None:
        self.talker, self.batch, self.clock = talker, batch, clock
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
            begin = self.clock()
            step = self.engine.step()
            elapsed = self.clock() - begin
            if self.engine.counters.prefill_runs == runs and len(step.streams) == self.batch:
                times.append(elapsed)
                self.frames.append(step.frames)
            runs = self.engine.counters.prefill_runs
        model, products, operations = _model_times(self.engine.runner, self.talker.device, self.clock)
        spec = self.talker.spec
        audio = self.batch * spec.seconds / spec.steps_per_frame
        return Measured(self.batch, 1, audio, float(np.median(times)), model, products, operations)


def _model_times(
    runner: GraphRunner[tuple[int, int]], device: torch.device, clock: Clock
) -> tuple[float, float, float]:
    """Of the key that was run last: the call alone, its products alone, its operations."""
    key = runner.last_key
    assert key is not None
    runner.make_idle(key)  # streams must not be stepped behind the engine's back
    model = median_seconds(lambda: runner.run(key), device, 20, clock)
    function, inputs = runner.eager(key), runner.inputs(key)
    products, operations = matrix_limit(lambda: function(*inputs.tensors), device, clock=clock)
    return model, products, operations


def measure_codec(
    codec: Codec,
    voice: VoiceConfig,
    batch: int,
    size: int,
    frames: np.ndarray,
    *,
    seconds: float,
    clock: Clock,
) -> Measured:
    """A codec engine with `batch` streams that send chunks of `size` frames, out of frames [n, width]."""
    config = dataclasses.replace(
        voice.engine, codec_slots=batch, codec_batch_buckets=(batch,), max_slots=batch
    )
    engine = CodecEngine(codec, config, [size], capture=capture_for(codec.device))
    engine.warm_up(lambda done, total: None)
    frames = np.resize(frames, (max(len(frames), 2 * size), frames.shape[1]))
    times: list[float] = []
    end = time.perf_counter() + seconds
    index = 0
    while time.perf_counter() < end or len(times) < 5:
        for key in range(batch):
            place = ((index * batch + key) * size) % max(1, len(frames) - size)
            chunk = frames[place : place + size]
            engine.submit(CodecJob(key, index, chunk, 0, index * size, False, 0.0))
        index += 1
        begin = clock()
        rows = 0
        while jobs := engine.form_batch():
            for result in engine.decode(jobs):
                if result.error is not None:
                    raise result.error
                rows += 1
        elapsed = clock() - begin
        if rows == batch and index > 2:
            times.append(elapsed)
    model, products, operations = _model_times(engine.runner, codec.device, clock)
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
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    family = load_family(voice.family)
    talker, codec = family.load_talker(voice, device), family.load_codec(voice, device)
    console.print(headline())
    console.print(
        f"voice {voice.name}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    if arguments.cpu_time:
        console.print("times are processor time of this process, not wall time")
    console.print(
        "products: the call's matrix products and convolutions alone, same shapes, same machine; "
        "limit: what the machine would do if a call were nothing else"
    )
    talkers, frames = [], []
    for batch in arguments.batches:
        bench = TalkerBench(talker, voice, batch, clock)
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
            measure_codec(codec, voice, batch, size, made, seconds=arguments.seconds, clock=clock)
            for batch in arguments.batches
        ]
        print_table(console, f"codec, chunks of {size} frames", codecs[size])
    talker.allocate(1, voice.engine.max_length)
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


def overhead(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """What the engines themselves cost: the same rounds over models that compute nothing."""
    torch.set_num_threads(1)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    console.print(headline())
    table = Table(box=None, pad_edge=False)
    for heading in ("B", "talker step us", "codec batch us"):
        table.add_column(heading, justify="right")
    report = {}
    for batch in arguments.batches:
        config = EngineConfig(
            max_slots=batch, codec_slots=batch, talker_batch_buckets=(batch,), codec_batch_buckets=(batch,)
        )
        talker = TalkerEngine(deadlines.IdleTalker(), config, capture=EagerCapture())
        codec = CodecEngine(deadlines.IdleCodec(), config, [4], capture=EagerCapture())
        for engine in (talker, codec):
            engine.warm_up(lambda done, total: None)
        for _ in range(batch):
            request = SpeechRequest(str(10**9), max_frames=10**9)
            prompt = talker.talker.build_prompt(request, request.text, True)
            talker.admit(SpeechStream(request, deque([prompt]), more_prompts=False))
        while len(talker.step().streams) < batch:
            pass
        steps, decodes = [], []
        chunk = np.zeros((4, 1), np.int32)
        for i in range(1000):
            begin = clock()
            talker.step()
            steps.append(clock() - begin)
            for key in range(batch):
                codec.submit(CodecJob(key, i, chunk, 0, 4 * i, False, 0.0))
            begin = clock()
            codec.decode(codec.form_batch())
            decodes.append(clock() - begin)
        report[batch] = {"talker": float(np.median(steps)), "codec": float(np.median(decodes))}
        table.add_row(str(batch), *(f"{value * 1e6:.0f}" for value in report[batch].values()))
    console.print(table)
    return {"environment": describe(), "overhead": report}


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
    parser.add_argument(
        "--cpu-time", action="store_true", help="count processor time: for a CPU that others use too"
    )
    parser.add_argument("--fifo", action="store_true", help="compare decoding orders instead")
    parser.add_argument(
        "--overhead", action="store_true", help="measure the engines over idle models instead"
    )
    parser.add_argument(
        "--memory", action="store_true", help="measure the memory of models and streams instead"
    )
    parser.add_argument(
        "--against-reference",
        type=Path,
        metavar="PYTHON",
        help="compare Qwen3-TTS with its reference package instead, run by this Python",
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    parsed = parse(arguments)
    console = terminal()
    report: dict[str, Any]
    if parsed.against_reference:
        python, threads = parsed.against_reference.absolute(), parsed.threads or 1
        report = qwen3_reference.compare(load_voice(parsed.voice), python, threads, console)
    elif parsed.memory:
        report = slot_memory.measure(load_voice(parsed.voice), torch.device(parsed.device), console)
    elif parsed.fifo:
        report = deadlines.compare(console)
    elif parsed.overhead:
        report = overhead(parsed, console)
    else:
        report = measure(parsed, console)
    if parsed.json:
        parsed.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Qwen3-TTS against its reference package: same checkpoint, same threads, same machine, in turns.

Talker: frames a second of C streams that start together, prompts included. The package makes one utterance
after the other, as its `generate` does; ours steps all streams together. Its own batch of C, in which all
requests start and end together and nothing can be streamed, is shown beside. Codec: one stream's chunk, ours
from slot state, theirs with 25 frames decoded again.

Times are processor time of one thread by default, since neighbours on the machine distort wall time; rounds
alternate between the two, and the median counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from rich.console import Console
from rich.table import Table

from backends.codec import Codec
from backends.families.qwen3_tts.talker import Qwen3Talker
from backends.family import load_family
from backends.graphs import EagerCapture
from backends.talker import SpeechRequest, Talker
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import EngineConfig, VoiceConfig
from bench.environment import describe, headline
from bench.qwen3_overlay import CONTEXT, timed
from bench.table import terminal
from launcher.settings import ROOT

# A random checkpoint's tokenizer makes a token of each letter: 16, as many as five seconds of English have.
TEXT = "Good day to you."
STREAMS = (1, 8)
CHUNKS = (1, 4, 15)


class Reference:
    """The worker in the overlay environment."""

    def __init__(self, python: Path, checkpoint: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [str(python), "-m", "bench.qwen3_overlay", str(checkpoint), str(threads)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def _read(self) -> dict[str, float]:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise ValueError(
                f"the reference ended with status {self._process.wait()}; run its command alone to see why: "
                "python -m bench.qwen3_overlay CHECKPOINT 1"
            )
        answer: dict[str, float] = json.loads(line)
        return answer

    def ask(self, **what: Any) -> dict[str, float]:
        """Times of one run."""
        pipe = self._pipe(self._process.stdin)
        pipe.write(json.dumps(what) + "\n")
        pipe.flush()
        return self._read()

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait(timeout=60)


def _never_ending(talker: Talker) -> Talker:
    """The same talker, whose end code is suppressed, as the reference is told: random weights draw it at times."""
    assert isinstance(talker, Qwen3Talker)
    talker._forbidden |= talker._end
    return talker


def _speak(talker: Talker, streams: int, frames: int) -> dict[str, float]:
    """Times of `streams` equal requests from prompt to their last frame."""
    buckets = tuple(b for b in (1, 2, 4, 8) if b <= streams)
    config = EngineConfig(
        max_slots=streams, max_length=256, length_buckets=(128, 256), talker_batch_buckets=buckets
    )
    engine = TalkerEngine(talker, config, capture=EagerCapture(talker.device))
    made = 0

    def run() -> None:
        nonlocal made
        for seed in range(streams):
            request = SpeechRequest(
                TEXT, language="english", seed=seed, sampling=talker.defaults, max_frames=frames
            )
            prompt = talker.build_prompt(request, TEXT, True)
            engine.admit(SpeechStream(request, deque([prompt]), more_prompts=False, text_ended=True))
        while engine.active:
            made += len(engine.step().streams)

    times = timed(run)
    assert made == streams * frames, f"{made} frames were made, not {streams} * {frames}"
    return times


def _decode(codec: Codec, chunk: int) -> dict[str, float]:
    """Times of one chunk of a stream that is under way."""
    one = torch.ones(1, dtype=torch.int64)
    slot = torch.zeros(1, dtype=torch.int64)
    codes = torch.randint(0, codec.spec.sizes[0], (1, CONTEXT + chunk, codec.spec.width))
    codec.open(slot)
    codec.decode(slot, codes[:, :CONTEXT], one * CONTEXT, one > 1)
    return timed(lambda: codec.decode(slot, codes[:, CONTEXT:], one * chunk, one > 1))


@dataclass
class Comparison:
    """Seconds of each round for what both made: `amount` frames, or seconds of audio."""

    name: str
    amount: float
    ours: list[float]
    theirs: list[float]
    batched: list[float]

    def rate(self, times: list[float]) -> float:
        return self.amount / statistics.median(times)

    @property
    def ratio(self) -> float:
        return self.rate(self.ours) / self.rate(self.theirs)

    def row(self) -> list[str]:
        batched = f"{self.rate(self.batched):.2f}" if self.batched else ""
        return [
            self.name,
            f"{self.rate(self.ours):.2f}",
            f"{self.rate(self.theirs):.2f}",
            f"{self.ratio:.2f}",
            batched,
        ]


def _print(console: Console, title: str, unit: str, comparisons: list[Comparison]) -> None:
    console.print(title, style="bold")
    table = Table(box=None, pad_edge=False)
    for heading in ("", f"ours {unit}", f"reference {unit}", "ratio", "reference, one batch"):
        table.add_column(heading, justify="right" if heading else "left")
    for comparison in comparisons:
        table.add_row(*comparison.row())
    console.print(table)


def compare(
    voice: VoiceConfig,
    python: Path,
    threads: int,
    console: Console,
    *,
    rounds: int = 3,
    frames: int = 62,
    clock: str = "cpu",
) -> dict[str, Any]:
    """Measure, print tables and return the figures.

    python: of the reference's environment. frames: made for each stream. clock: "cpu" or "wall".
    """
    torch.set_num_threads(threads)
    family, cpu = load_family(voice.family), torch.device("cpu")
    reference = Reference(python, voice.checkpoint, threads)
    talker = _never_ending(family.load_talker(voice, cpu))
    talkers = [Comparison(f"C{n}", n * frames, [], [], []) for n in STREAMS]
    with torch.inference_mode():
        reference.ask(op="talker", text=TEXT, batch=1, frames=2)
        for streams in STREAMS:
            _speak(talker, streams, 2)
        for _ in range(rounds):
            alone = reference.ask(op="talker", text=TEXT, batch=1, frames=frames)[clock]
            for streams, comparison in zip(STREAMS, talkers, strict=True):
                comparison.ours.append(_speak(talker, streams, frames)[clock])
                comparison.theirs.append(alone * streams)
                if streams > 1:
                    batch = reference.ask(op="talker", text=TEXT, batch=streams, frames=frames)[clock]
                    comparison.batched.append(batch)
        del talker
        codec = family.load_codec(voice, cpu)
        codec.allocate(1)
        codecs = [Comparison(f"{n} frames", n * codec.spec.seconds, [], [], []) for n in CHUNKS]
        for round_ in range(2 * rounds + 1):  # the first warms up
            for chunk, comparison in zip(CHUNKS, codecs, strict=True):
                ours = _decode(codec, chunk)[clock]
                theirs = reference.ask(op="codec", chunk=chunk)[clock]
                if round_:
                    comparison.ours.append(ours)
                    comparison.theirs.append(theirs)
    reference.close()
    console.print(headline())
    console.print(
        f"voice {voice.name}, {threads} threads, torch {torch.__version__}, {clock} time, median of {rounds} rounds"
    )
    _print(console, f"talker, {frames} frames a stream, prompt included", "frames/s", talkers)
    _print(console, f"codec, one stream, reference with {CONTEXT} frames of context", "x real time", codecs)
    return {
        "environment": describe(),
        "voice": voice.name,
        "clock": clock,
        "talker": {c.name: vars(c) | {"ratio": c.ratio} for c in talkers},
        "codec": {c.name: vars(c) | {"ratio": c.ratio} for c in codecs},
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.qwen3_reference", description=__doc__)
    parser.add_argument("--reference-python", type=Path, required=True, help="Python of the overlay")
    parser.add_argument("--checkpoint", type=Path, required=True, help="CustomVoice folder, may be random")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--talker-frames", type=int, default=62, help="a stream; 62 are five seconds")
    parser.add_argument("--wall", action="store_true", help="wall time instead of processor time")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(arguments)
    checkpoint = options.checkpoint.resolve()
    voice = VoiceConfig(checkpoint.name, "qwen3_tts", checkpoint, checkpoint)
    report = compare(
        voice,
        options.reference_python.absolute(),
        options.threads,
        terminal(),
        rounds=options.rounds,
        frames=options.talker_frames,
        clock="wall" if options.wall else "cpu",
    )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

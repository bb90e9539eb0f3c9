"""Cost of wren's talker step and codec call, side by side with a reference implementation.

    python -m bench.wren [--voice voices/wren.yaml] [--reference FOLDER --reference-voice FOLDER]

The reference is a folder of scripts with a `tinyvoice.TinyVoice` (the prototype that wren was made
from), which needs its own weights folder. Both run in this process on one thread, taking turns call by
call, so that whatever else the machine does hits both alike. Times are medians in milliseconds for one
frame (80 ms of audio) of every stream.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from backends.codec import Codec
from backends.family import load_family
from backends.frames import FrameSpec
from backends.talker import SamplingTable, SpeechRequest, Talker
from backends.voice import load_voice

TEXT = (
    "The old lighthouse stood on a narrow point of land, and its lamp had been dark for many years. "
    "Every summer, visitors walked along the path to see it."
)
BATCHES = (1, 4, 8, 16)
CHUNKS = (1, 2, 4, 8, 15)
WARM_UP = 10

Call = Callable[[], object]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.thread_time}


def take_turns(calls: Sequence[Call], rounds: int, clock: Clock) -> list[float]:
    """Median milliseconds of each call; the calls alternate."""
    times: list[list[float]] = [[] for _ in calls]
    for round_ in range(WARM_UP + rounds):
        for call, measured in zip(calls, times, strict=True):
            begin = clock()
            call()
            if round_ >= WARM_UP:
                measured.append((clock() - begin) * 1e3)
    return [statistics.median(measured) for measured in times]


def talker_call(talker: Talker, batch: int, temperature: float) -> Call:
    """A step of `batch` slots that speak TEXT, prefilled again shortly before the text ends."""
    prompt = talker.build_prompt(SpeechRequest(TEXT), TEXT, True)
    slots = torch.arange(batch)
    inputs = prompt.inputs[None].expand(batch, -1, -1).contiguous()
    lengths = torch.full((batch,), inputs.shape[1])
    begins = torch.zeros(batch, dtype=torch.int64)
    table = sampling_table(talker, max(BATCHES) + 1, temperature)
    noise = torch.rand(batch, talker.noise.count)
    talker.prefill(slots, inputs, lengths, begins)
    return lambda: talker.step(slots, begins, noise, table, 0)


def sampling_table(talker: Talker, rows: int, temperature: float) -> SamplingTable:
    return SamplingTable(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), talker.defaults.top_k),
        top_p=torch.ones(rows),
        repetition_penalty=torch.ones(rows),
        extra={name: torch.full((rows,), p.default) for name, p in talker.parameters.items()},
    )


def codec_call(codec: Codec, batch: int, frames: int) -> Call:
    slots = torch.arange(batch)
    codes = torch.randint(0, codec.spec.sizes[0], (batch, frames, codec.spec.width))
    lengths = torch.full((batch,), frames)
    final = torch.zeros(batch, dtype=torch.bool)
    codec.open(slots)
    return lambda: codec.decode(slots, codes, lengths, final)


class Reference:
    """The prototype, stepped as its own benchmark does: state gathered and scattered per stream."""

    def __init__(self, scripts: Path, weights: Path) -> None:
        sys.path.insert(0, str(scripts))
        import codec as prototype_codec  # noqa: PLC0415
        from tinyvoice import TinyVoice  # noqa: PLC0415

        self.codec = prototype_codec
        self.voice: Any = TinyVoice(str(weights))

    def talker_call(self, batch: int, temperature: float) -> Call:
        streams = [self.voice.open(TEXT) for _ in range(batch)]
        return lambda: self.voice.step(streams, temp=temperature)

    def codec_call(self, batch: int, frames: int) -> Call:
        states = [self.voice.dec.init_state(1) for _ in range(batch)]
        codes = torch.randint(0, 512, (batch, frames, 8))
        latents = torch.stack([self.voice.cb[q][codes[..., q]] for q in range(8)]).sum(0)

        @torch.no_grad()
        def call() -> None:
            joined = self.codec.cat_states(states)
            self.voice.dec(latents, joined)
            states[:] = self.codec.split_state(joined)

        return call


def line(name: str, batch: int, frames: int, spec: FrameSpec, times: Sequence[float]) -> dict[str, Any]:
    """One result, printed as a table row."""
    audio = frames * spec.seconds * 1e3
    row: dict[str, Any] = {"what": name, "batch": batch, "frames": frames, "ms": round(times[0], 2)}
    text = f"{name:<22}{batch:>5}{frames:>7}{times[0]:>9.2f} ms   RTF {times[0] / audio:.3f}"
    if len(times) > 1:
        row |= {"reference_ms": round(times[1], 2), "ratio": round(times[0] / times[1], 3)}
        text += f"   reference{times[1]:>9.2f} ms   ratio {times[0] / times[1]:.2f}"
    print(text, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voice", type=Path, default=Path("voices/wren.yaml"))
    parser.add_argument("--reference", type=Path, help="folder of the prototype's scripts")
    parser.add_argument("--reference-voice", type=Path, help="folder of the prototype's weights")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: the thread's own time, for a machine shared with others",
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    if (options.reference is None) != (options.reference_voice is None):
        parser.error("give --reference and --reference-voice together")

    clock = CLOCKS[options.clock]
    torch.set_num_threads(1)
    voice = load_voice(options.voice)
    family = load_family(voice.family)
    talker = family.load_talker(voice, torch.device("cpu"))
    codec = family.load_codec(voice, torch.device("cpu"))
    talker.allocate(max(BATCHES), voice.engine.max_length)
    codec.allocate(max(BATCHES))
    reference = Reference(options.reference, options.reference_voice) if options.reference else None

    results = []
    for temperature, name in ((0.0, "talker step, greedy"), (0.7, "talker step, sampled")):
        for batch in BATCHES:
            calls = [talker_call(talker, batch, temperature)]
            if reference:
                calls.append(reference.talker_call(batch, temperature))
            results.append(line(name, batch, 1, talker.spec, take_turns(calls, options.rounds, clock)))
    for frames in CHUNKS:
        for batch in BATCHES:
            calls = [codec_call(codec, batch, frames)]
            if reference:
                calls.append(reference.codec_call(batch, frames))
            rounds = max(10, options.rounds // frames)
            results.append(line("codec call", batch, frames, codec.spec, take_turns(calls, rounds, clock)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

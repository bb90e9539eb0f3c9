"""`bench/gpu/run`: does the CUDA path compute what the eager path does, and how fast is it at real size?

1. Parity: for the embedded voice and for Qwen3-TTS at real size with random weights, every captured key of
both engines
   is replayed and called eagerly from the same state.
2. Graph counts: every key captured at warm-up, none afterwards, no fallback, no miss.
3. Speed: bench.engines for both voices.

Writes report.json and tables.txt to --out; copy the tables into docs/gpu.md with the device that they name.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from backends import make_random
from backends.family import load_family
from backends.graphs import capture_for
from backends.voice import load_voice
from bench import engines
from bench.environment import headline
from bench.gpu.parity import codec_parity, talker_parity
from launcher.settings import ROOT

QWEN = {
    "name": "qwen3-tts-random",
    "family": "qwen3_tts",
    "checkpoint": "qwen3-tts",
    "stream": {"initial_codec_chunk_frames": 1, "codec_chunk_ramp": [2, 4, 8, 15], "codec_chunk_frames": 15},
    "engine": {
        "max_slots": 32,
        "max_length": 2048,
        "talker_batch_buckets": [1, 2, 4, 8, 16, 32],
        "codec_batch_buckets": [1, 2, 4, 8, 16, 32],
        "length_buckets": [256, 512, 1024, 2048],
    },
}


def qwen_voice(folder: Path, name: str, tiny: bool) -> Path:
    """A voice file for a random checkpoint of the published size, written once."""
    if not (folder / "qwen3-tts").exists():
        options = [name, str(folder / "qwen3-tts"), *(["--tiny"] if tiny else [])]
        if make_random.main(options):
            raise SystemExit(1)
    path = folder / "voice.yaml"
    path.write_text(yaml.safe_dump(QWEN), encoding="utf-8")
    return path


def check_parity(
    voice_path: Path, device: torch.device, console: Console
) -> tuple[dict[str, Any], list[str]]:
    voice = load_voice(voice_path)
    family = load_family(voice.family)
    report, problems = {}, []
    for part in ("talker", "codec"):
        capture = capture_for(device, voice.engine.compile)
        if part == "talker":
            parity = talker_parity(family.load_talker(voice, device), voice, capture)
        else:
            parity = codec_parity(family.load_codec(voice, device), voice, capture)
        report[part] = vars(parity)
        problems += [f"{voice.name} {part}: {problem}" for problem in parity.problems]
        console.print(
            f"{voice.name} {part}: {parity.captures_warmup} of {parity.keys} graphs, "
            f"largest difference from eager {parity.worst:.1e} at {parity.worst_key}"
        )
    return report, problems


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench/gpu/run", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--model", choices=make_random.NAMES, default=make_random.NAMES[-1])
    parser.add_argument("--tiny", action="store_true", help="a tiny checkpoint: tries the command itself")
    parser.add_argument("--batches", default="1,4,8,16,32")
    parser.add_argument("--seconds", default="2.0", help="for each figure")
    parsed = parser.parse_args(arguments)
    device = torch.device(parsed.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("bench/gpu/run: torch finds no CUDA device; --device cpu tries the command", file=sys.stderr)
        return 1
    parsed.out.mkdir(parents=True, exist_ok=True)
    console = Console(record=True, highlight=False, width=200)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    console.print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    console.print(headline())
    report: dict[str, Any] = {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    problems: list[str] = []
    for voice in (ROOT / "voices" / "wren.yaml", qwen_voice(parsed.out, parsed.model, parsed.tiny)):
        found, wrong = check_parity(voice, device, console)
        problems += wrong
        speed = engines.parse(
            ["--voice", str(voice), "--device", str(device), "--batches", parsed.batches,
             "--seconds", parsed.seconds]
        )  # fmt: skip
        report[load_voice(voice).name] = {"parity": found, "speed": engines.measure(speed, console)}
    for problem in problems:
        console.print(f"WRONG: {problem}", style="red")
    report["problems"] = problems
    (parsed.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (parsed.out / "tables.txt").write_text(console.export_text(), encoding="utf-8")
    print(f"report in {parsed.out}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Step 6: a folder that the family wren can load.

    python -m voices.wren.training.export WORK VOICE

Writes VOICE/voice.safetensors (talker, decoder and codebooks, float16), VOICE/encoder.safetensors, and
copies the pronunciation tables. A voice's YAML names the folder as its checkpoint.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from backends.families.wren.geometry import FRAME_SPEC
from backends.families.wren.loading import LEXICON_FILE, RULES_FILE
from backends.families.wren.weights import VOICE_FILE
from voices.wren.training import checkpoints

ENCODER_FILE = "encoder.safetensors"


def export(work: Path, voice: Path) -> None:
    """Raises FileNotFoundError if a step before this one has not been run."""
    codec, talker = load_file(work / checkpoints.CODEC), load_file(work / checkpoints.TALKER)
    spoken = {f"talker.{name}": tensor for name, tensor in talker.items()}
    spoken |= {
        name: tensor
        for name, tensor in codec.items()
        if name.startswith("decoder.") or name == "quantiser.codewords"
    }
    heard = {name: tensor for name, tensor in codec.items() if name.startswith("encoder.")}
    voice.mkdir(parents=True, exist_ok=True)
    metadata = {
        "sample_rate": str(FRAME_SPEC.sample_rate),
        "frame_rate": str(1 / FRAME_SPEC.seconds),
        "license": "see NOTICE",
    }
    for name, tensors in ((VOICE_FILE, spoken), (ENCODER_FILE, heard)):
        halves = {key: tensor.half().contiguous() for key, tensor in sorted(tensors.items())}
        save_file(halves, voice / name, metadata=metadata)
    for name in (LEXICON_FILE, RULES_FILE):
        shutil.copy(work / name, voice / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("voice", type=Path)
    options = parser.parse_args()
    export(options.work, options.voice)
    for path in sorted(options.voice.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

"""`./tritone make-random NAME DIR`: write a checkpoint with random weights, in the published layout and size.

It speaks noise. It is for measuring speed, memory and loading without the real checkpoint, and, with --tiny,
for tests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from backends.families.qwen3_tts.config import STYLES
from backends.families.qwen3_tts.random_checkpoint import SIZES, write_random_checkpoint

NAMES = tuple(f"qwen3-tts-{size}" for size in SIZES)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tritone make-random", description=__doc__)
    parser.add_argument("name", choices=NAMES, help="which published model to imitate")
    parser.add_argument("folder", type=Path, help="folder to write; must be new or empty")
    parser.add_argument("--style", choices=STYLES, default="custom_voice", help="kind of checkpoint")
    parser.add_argument("--tiny", action="store_true", help="same structure, a few hundred thousand weights")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        write_random_checkpoint(
            options.folder,
            options.name.removeprefix("qwen3-tts-"),
            options.style,
            tiny=options.tiny,
            seed=options.seed,
        )
    except (OSError, ValueError) as error:
        print(f"tritone make-random: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(f"wrote {options.folder} ({size / 2**20:.1f} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

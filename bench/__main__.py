"""`python -m bench`, which is `./tritone bench`: the load generator, or the measurement that is named
first."""

from __future__ import annotations

import importlib
import signal
import sys
from types import FrameType

from bench.server import BenchError
from launcher.errors import LauncherError

MEASUREMENTS = {
    "intelligibility": "bench.intelligibility",
    "experiment-8124": "bench.experiment_8124",
    "pipeline": "bench.pipeline",
    "peers": "bench.peers.compare",
    "growth": "bench.growth",
    "verify": "bench.verify_audio",
    "soak": "bench.soak",
    "fuzz": "bench.fuzz",
}


def main(arguments: list[str]) -> int:
    name = arguments[0] if arguments and arguments[0] in MEASUREMENTS else None
    module = importlib.import_module(MEASUREMENTS[name] if name else "bench.run")
    try:
        status: int = module.main(arguments[1:] if name else arguments)
    except (BenchError, LauncherError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return status


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # Both end a run as Ctrl-C does, so that its servers are stopped; shells start background jobs with SIGINT off.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

"""What a report says of the machine and the code that it was made on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from launcher.settings import ROOT


def describe() -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": _commit(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "load_average": os.getloadavg(),
    }


def headline() -> str:
    """One line: a figure of a busy machine is worth less, so the load average stands in it."""
    known = describe()
    return (
        f"{known['time']}, commit {known['commit']}, {known['cores']} cores ({known['processor']}), "
        f"load average before {known['load_average'][0]:.1f}"
    )


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

"""`./tritone test`: linter, formatter, type checker and tests, each run to its end so that one call shows all
faults.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from launcher.settings import ROOT

SCRIPT = "tritone"  # has no ending by which the linter would find it
TYPED = ("chunk_policies", "backends", "client", "launcher")

Report = Callable[[str], None]


def commands(pytest_arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Name and command of each check. Arguments choose tests: only those run then, no other check."""
    python = sys.executable
    tests = ("tests", [python, "-m", "pytest", *pytest_arguments])
    if pytest_arguments:
        return [tests]
    return [
        ("lint", [python, "-m", "ruff", "check", ".", SCRIPT]),
        ("format", [python, "-m", "ruff", "format", "--check", ".", SCRIPT]),
        ("types", [python, "-m", "mypy", *TYPED]),
        tests,
    ]


def run(pytest_arguments: Sequence[str], report: Report) -> int:
    """Exit status: 0 if all pass. The tests come last, so that their summary closes the output."""
    failed = []
    for name, command in commands(pytest_arguments):
        report(f"{name}: {' '.join(command[1:])}")
        started = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            failed.append(name)
        report(f"{name}: {'failed' if status else 'passed'} in {time.monotonic() - started:.0f} s")
    if failed:
        report(f"failed: {', '.join(failed)}")
    return 1 if failed else 0

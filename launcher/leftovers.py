"""Finding and removing what a server leaves behind: processes and shared memory, known by the run's identity.

A killed stub leaves its shared memory; a stub stuck in a lock survives its server. Every process of a run
carries TRITONE_INSTANCE in its environment, every shared memory file of it begins with tritone-IDENTITY.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def processes(identity: str) -> list[int]:
    """Process ids of a run, zombies excluded (a zombie has no environment)."""
    wanted = f"TRITONE_INSTANCE={identity}".encode()
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
        except OSError:
            continue  # gone meanwhile, or another user's
    return found


def model_processes(identity: str) -> dict[str, int]:
    """Living stubs of a run: model name -> process id."""
    found = {}
    for pid in processes(identity):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if not arguments[0].endswith(b"triton_python_backend_stub"):
            continue
        for argument in arguments:
            if argument.endswith(b"_0_0"):
                found[argument[:-4].decode()] = pid
    return found


def kill_processes(identity: str, patience: float = 5.0) -> list[int]:
    """SIGKILL every process of a run and wait until they are gone; returns those that were there."""
    killed = []
    deadline = time.monotonic() + patience
    while remaining := processes(identity):
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if pid not in killed:
                killed.append(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return killed


def shared_memory(identity: str) -> list[Path]:
    """Shared memory files of a run."""
    return sorted(
        path for separator in ("_", ".") for path in SHARED_MEMORY.glob(f"tritone-{identity}{separator}*")
    )


def remove_shared_memory(identity: str) -> list[Path]:
    """Unlink them all; only for a run whose processes are gone."""
    removed = shared_memory(identity)
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def remove_dead_regions(identity: str) -> list[Path]:
    """Unlink the regions of stubs that died, while the run goes on. Only while no model is being loaded."""
    used = set()
    for pid in model_processes(identity).values():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return []  # a stub that dies right now: next time
        used |= {argument.decode(errors="replace") for argument in arguments}
    dead = [p for p in SHARED_MEMORY.glob(f"tritone-{identity}_*") if p.name not in used]
    for path in dead:
        path.unlink(missing_ok=True)
    return dead


def clean(identity: str) -> tuple[list[int], list[Path]]:
    """End what is left of a run; returns the killed process ids and the removed files."""
    return kill_processes(identity), remove_shared_memory(identity)


def scratch_directories() -> set[Path]:
    """Empty directories that Python backends make in /tmp at their start and leave when they are killed."""
    return set(Path("/tmp").glob("python_env_*"))


def remove_empty(directories: set[Path]) -> None:
    for directory in directories:
        with contextlib.suppress(OSError):  # gone, or in use after all
            directory.rmdir()

"""What the processes of a server use: CPU time, memory, shared memory. From /proc, Linux only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher import leftovers

_TICKS = os.sysconf("SC_CLK_TCK")
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Usage:
    """One process. cpu_seconds: since its start. memory_megabytes: resident, pages shared with others
    included."""

    cpu_seconds: float
    memory_megabytes: float
    threads: int


def usage(pid: int) -> Usage | None:
    """None if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    values = dict(line.split(":", 1) for line in status.splitlines())
    memory = values.get("VmRSS", "0 kB").split()[0]
    return Usage(
        (int(fields[11]) + int(fields[12])) / _TICKS, int(memory) * 1024 / MEGABYTE, int(values["Threads"])
    )


def server_usage(identity: str) -> dict[str, Usage]:
    """Every process of a server by what it is: "tritonserver" and the models' names ("talker", "bls 1")."""
    found: dict[str, Usage] = {}
    for pid in leftovers.processes(identity):
        value = usage(pid)
        name = _name(pid)
        if value is not None and name is not None:
            found[name] = value
    return found


def _name(pid: int) -> str | None:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if arguments[0].endswith("/tritonserver"):
        return "tritonserver"
    if not arguments[0].endswith("triton_python_backend_stub"):
        return None
    # A stub is told its instance as MODEL_GROUP_NUMBER.
    for argument in arguments:
        parts = argument.rsplit("_", 2)
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit() and "/" not in argument:
            return parts[0] if parts[2] == "0" else f"{parts[0]} {parts[2]}"
    return None


def cpu_between(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, float]:
    """CPU seconds of each process between two readings; one that was restarted counts from its start."""
    spent = {}
    for name, now in after.items():
        then = before.get(name)
        start = then.cpu_seconds if then and then.cpu_seconds <= now.cpu_seconds else 0.0
        spent[name] = now.cpu_seconds - start
    return spent


def shared_memory_megabytes(identity: str) -> float:
    """What a server has in /dev/shm: its ledger and the regions of its models."""
    return sum(path.stat().st_blocks * 512 for path in leftovers.shared_memory(identity)) / MEGABYTE

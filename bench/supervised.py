"""A server as users run it, supervisor included, on ports of its own; and what its processes hold."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from backends.serving.ledger import Ledger
from bench.server import ServerPlan, changed_voice, free_ports
from launcher import leftovers
from launcher.background import ensure_running, stop
from launcher.instance import Instance
from launcher.server import ledger_path
from launcher.settings import Settings

MEGABYTE = 1_000_000
# "Found N model versions that have in-flight inferences", then a line a model: "has N in-flight inferences".
_IN_FLIGHT = re.compile(r"(?:has|Found) (\d+) (?:model versions that have )?in-flight inferences")


@dataclass(frozen=True)
class Process:
    """One process. resident_megabytes: pages shared with others included."""

    pid: int
    resident_megabytes: float
    threads: int
    descriptors: int


@dataclass(frozen=True)
class Reading:
    """What a server holds. processes: supervisor, tritonserver, talker, codec. shared_megabytes: in /dev/shm.
    rows: ledger rows in use, by streams that are open or whose codec has not let go of them."""

    processes: Mapping[str, Process]
    shared_megabytes: float
    rows: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Watched:
    """A supervised server of this machine. log: its file. identity: names its processes and shared memory.
    leaked: requests that Triton still held when it was told to end; None before."""

    def __init__(self, settings: Settings, runtime: Path | None = None) -> None:
        self.settings = settings
        instance = Instance(settings.grpc_port, runtime)
        state = instance.state()
        assert state is not None
        self.identity = state.identity
        self.log = instance.log
        self._supervisor = state.pid
        self.leaked: int | None = None

    def reading(self) -> Reading:
        """Now. A process that has gone meanwhile is left out."""
        pids = {"supervisor": self._supervisor, **leftovers.model_processes(self.identity)}
        for pid in leftovers.processes(self.identity):
            if _command(pid).endswith("/tritonserver"):
                pids["tritonserver"] = pid
        processes = {name: found for name, pid in pids.items() if (found := _process(pid)) is not None}
        shared = leftovers.shared_memory(self.identity)
        megabytes = sum(path.stat().st_blocks * 512 for path in shared) / MEGABYTE
        ledger = Ledger(ledger_path(self.identity), None)
        try:
            rows = int((np.abs(ledger.generation) != ledger.released).sum())
        finally:
            ledger.close()
        return Reading(processes, megabytes, rows)

    def note_end(self) -> None:
        """Read `leaked` from the log of a server that was told to end."""
        found = _IN_FLIGHT.findall(self.log.read_text(errors="replace"))
        self.leaked = max((int(number) for number in found), default=None)


@contextmanager
def supervised_server(
    voice: str = "wren", changes: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any
) -> Iterator[Watched]:
    """Start one and end it. changes: sections of the voice's YAML whose keys are replaced."""
    with tempfile.TemporaryDirectory(prefix="tritone-bench-") as folder:
        path = Path(folder) / "voice.yaml"
        document = changed_voice(ServerPlan(voice, changes=changes or {}))
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        grpc_port, http_port, metrics_port = free_ports(3)
        chosen = Settings(
            grpc_port=grpc_port,
            http_port=http_port,
            metrics_port=metrics_port,
            voice=str(path),
            **{"device": "cpu", **settings},
        )
        before = os.environ.get("TRITONE_RUNTIME_DIR")
        os.environ["TRITONE_RUNTIME_DIR"] = folder
        try:
            ensure_running(chosen, None, lambda message: None)
            watched = Watched(chosen)
            try:
                yield watched
            finally:
                stop(Instance(grpc_port), lambda message: None)
                watched.note_end()
        finally:
            if before is None:
                del os.environ["TRITONE_RUNTIME_DIR"]
            else:
                os.environ["TRITONE_RUNTIME_DIR"] = before


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def _process(pid: int) -> Process | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in status.splitlines())
    resident = int(values.get("VmRSS", "0 kB").split()[0]) * 1024 / MEGABYTE
    return Process(pid, resident, int(values["Threads"]), descriptors)

"""What is known of a server that runs in the background: a directory .tritone/PORT with its lock, state and
log.

The lock decides whether it runs: the supervisor holds it (flock) as long as it lives, so a crash cannot leave
a server that seems to run. state.json is replaced as a whole whenever something changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from launcher.settings import ROOT, Settings

STARTING, READY, RECOVERING, DRAINING, STOPPED, FAILED = (
    "starting",
    "ready",
    "recovering",
    "draining",
    "stopped",
    "failed",
)


def runtime_directory() -> Path:
    """Where running servers keep their files: TRITONE_RUNTIME_DIR, or .tritone at the root."""
    return Path(os.environ.get("TRITONE_RUNTIME_DIR") or ROOT / ".tritone")


@dataclass(frozen=True)
class State:
    """What a supervisor says of itself.

    identity: name of this run in shared memory and in the environment of its processes, e.g. 8001-3fa9c2.
    state: starting, ready, recovering, draining, stopped or failed. pid: the supervisor's. since: Unix time
    of the last change. settings: as JSON. recoveries: how many times the server or a model was brought back.
    detail: why it is in this state, for people.
    """

    identity: str
    state: str
    pid: int
    since: float
    settings: str
    recoveries: int = 0
    detail: str = ""


class Instance:
    """The directory of the server that listens on one gRPC port."""

    def __init__(self, grpc_port: int, runtime: Path | None = None) -> None:
        self.grpc_port = grpc_port
        self.directory = (runtime or runtime_directory()) / str(grpc_port)
        self.log = self.directory / "server.log"
        self._state = self.directory / "state.json"
        self._lock = self.directory / "lock"

    def running(self) -> bool:
        """Whether a supervisor of this port lives."""
        try:
            with self._lock.open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Be the supervisor of this port. Yields False where another one is."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def state(self) -> State | None:
        """The last state that a supervisor wrote, also of one that is gone; what a later version added is left
        out."""
        if not self._state.exists():
            return None
        known = {field.name for field in fields(State)}
        values = json.loads(self._state.read_text())
        return State(**{name: value for name, value in values.items() if name in known})

    def write(self, state: State) -> None:
        draft = self._state.with_suffix(".new")
        draft.write_text(json.dumps(asdict(state)))
        draft.replace(self._state)

    def settings(self) -> Settings | None:
        state = self.state()
        return None if state is None else Settings.from_json(state.settings)


def all_instances() -> list[Instance]:
    """Every instance that has a directory, by port."""
    directory = runtime_directory()
    ports = [int(p.name) for p in directory.iterdir() if p.name.isdigit()] if directory.is_dir() else []
    return [Instance(port) for port in sorted(ports)]


def new_state(settings: Settings) -> State:
    identity = f"{settings.grpc_port}-{secrets.token_hex(3)}"
    return State(identity, STARTING, os.getpid(), time.time(), settings.to_json())


def changed(state: State, to: str, detail: str = "", recovered: bool = False) -> State:
    return replace(
        state, state=to, detail=detail, since=time.time(), recoveries=state.recoveries + int(recovered)
    )

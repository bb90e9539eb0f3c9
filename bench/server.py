"""Starts a server to be measured: own ports, own runtime directory, no supervisor, nothing left behind.

The supervisor's pings and recoveries would disturb a measurement, and a baseline that dies must be seen to
die.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from bench.processes import Usage, server_usage, shared_memory_megabytes
from launcher import guard, leftovers
from launcher.probe import ProbeError, Server
from launcher.server import EXIT_TIMEOUT_SECONDS, command_line, environment, find_installation, link_backends
from launcher.settings import ROOT, Settings

VOICES = ROOT / "voices"
REPOSITORY = ROOT / "model_repository"
START_SECONDS = 180.0


class BenchError(Exception):
    """A measurement cannot be made; the message tells why and the way out."""


@dataclass(frozen=True)
class ServerPlan:
    """What to start. voice: name under voices/ or path of a YAML. changes: sections of the voice's YAML in
    which keys are replaced, for example {"engine": {"max_slots": 8}}. stream: takes the place of the whole
    section `stream`. repository: model directory, None for the product's. extra: further options for
    tritonserver. environment: further variables for the models.
    """

    voice: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stream: Mapping[str, Any] | None = None
    device: str = "cpu"
    repository: Path | None = None
    extra: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0


def voice_path(voice: str) -> Path:
    """Raises BenchError if there is no such voice."""
    path = Path(voice) if voice.endswith((".yaml", ".yml")) else VOICES / f"{voice}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in VOICES.glob("*.yaml")))
        raise BenchError(f"--voice {voice}: no such voice; there are {known}, and paths to a .yaml file")
    return path


def changed_voice(plan: ServerPlan) -> dict[str, Any]:
    """The YAML document of the plan's voice with its changes; the checkpoint's path is made absolute."""
    path = voice_path(plan.voice)
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["checkpoint"] = str((path.parent / document["checkpoint"]).resolve())
    for section, keys in plan.changes.items():
        document[section] = {**(document.get(section) or {}), **keys}
    if plan.stream is not None:
        document["stream"] = dict(plan.stream)
    return document


class BenchServer:
    """A running tritonserver; a context manager. url: of its gRPC port. died: whether it has ended by
    itself."""

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self._directory = tempfile.TemporaryDirectory(prefix="tritone-bench-")
        self.directory = Path(self._directory.name)
        self.log = self.directory / "server.log"
        grpc_port, http_port, metrics_port = free_ports(3)
        voice = self.directory / "voice.yaml"
        voice.write_text(yaml.safe_dump(changed_voice(plan)), encoding="utf-8")
        self.settings = Settings(
            grpc_port=grpc_port,
            http_port=http_port,
            metrics_port=metrics_port,
            voice=str(voice),
            device=plan.device,
            log_level="warning",
            threads=plan.threads,
            probe_seconds=0.0,
            model_repository=str(plan.repository or REPOSITORY),
        )
        self.identity = f"{grpc_port}-{secrets.token_hex(3)}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.settings.grpc_url

    @property
    def died(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def usage(self) -> dict[str, Usage]:
        return server_usage(self.identity)

    def shared_memory_megabytes(self) -> float:
        return shared_memory_megabytes(self.identity)

    def log_tail(self, lines: int = 15) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def start(self) -> None:
        """Start and wait until it speaks. Raises BenchError with the log's last lines."""
        installation = find_installation()
        backends, libraries = link_backends(installation, self.directory / "backends")
        command = command_line(
            self.settings, installation, self.identity, backends, self.directory / "aliases"
        )
        if self.plan.repository is not None:
            # A BLS model does not tell which models it calls.
            command = ["--load-model=*" if part.startswith("--load-model") else part for part in command]
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *command, *self.plan.extra]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(self.settings, self.identity, libraries) | dict(self.plan.environment),
            )
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        with Server(self.url) as server:
            while not server.ready():
                if self.died or time.monotonic() > deadline:
                    raise BenchError(f"the server did not start; the end of its log:\n{self.log_tail()}")
                time.sleep(0.1)
            try:
                server.speak(30.0)
            except ProbeError as error:
                raise BenchError(f"the server started, but {error}; its log:\n{self.log_tail()}") from error

    def stop(self) -> None:
        """End it, by force if need be, and remove what it leaves."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(EXIT_TIMEOUT_SECONDS + 3.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        leftovers.clean(self.identity)

    def __enter__(self) -> BenchServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            self._directory.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._directory.cleanup()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]

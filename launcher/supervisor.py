"""Runs the server, watches it by real answers, brings back what dies, and ends it without leaving anything.

Four kinds of death have four remedies. A dead codec process: the talker ends the codec's streams itself, the
model is unloaded and loaded. A dead talker: the codec ends every stream that has had audio; where a stream
has had none, only the server's end reaches its client, so the server is restarted. A stuck process is killed
first, since unloading waits for it. A dead server is restarted. All attempts back off.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import numpy as np

from backends.serving.ledger import Ledger
from launcher import leftovers, logs
from launcher.diagnosis import Action, Backoff, Diagnosis, Verdict
from launcher.instance import (
    DRAINING,
    FAILED,
    READY,
    RECOVERING,
    STOPPED,
    Instance,
    State,
    changed,
)
from launcher.probe import ProbeError, Pulse, Server
from launcher.server import (
    EXIT_TIMEOUT_SECONDS,
    MODELS,
    command_line,
    environment,
    find_installation,
    ledger_path,
    link_backends,
    restrictions,
    write_alias,
)
from launcher.settings import Settings

TICK_SECONDS = 0.25
PING_SECONDS = 1.0
PING_TIMEOUT = 5.0
SPEAK_TIMEOUT = 30.0
SILENT_SECONDS = 5.0  # age of the talker's heartbeat from which a ping without an answer means stuck
UNLOAD_TIMEOUT = 5.0
LOAD_TIMEOUT = 600.0
FAILED_STARTS = 5  # in a row, after which the supervisor gives up
PR_SET_CHILD_SUBREAPER = 36


class StartError(Exception):
    """The server ended, or could not speak, before it was ready."""


class Supervisor:
    """One server and its watch. `run` is the whole life; it must be called in the main thread (signals)."""

    def __init__(self, settings: Settings, instance: Instance, state: State, logger: logging.Logger) -> None:
        self._settings = settings
        self._instance = instance
        self._state = state
        self._log = logger
        self._identity = state.identity
        self._key = os.environ.get("TRITONE_KEY") or secrets.token_hex(16)
        self._process: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._signals = 0
        self._diagnosis = Diagnosis()
        self._backoff = Backoff()
        self._stubs: dict[str, int] = {}
        self._pulse: Pulse | None = None
        self._ledger: Ledger | None = None
        self._scratch: set[Path] = set()

    def run(self) -> int:
        """Start, watch, stop; the exit status: 0 after a signal, 1 if the server could not be kept up."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        # Stubs whose server died become our children, so that they can be waited for.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._change(self._state.state)
        try:
            self._start_until_ready()
            self._change(READY)
            self._watch()
        except StartError as error:
            if not self._stop.is_set():
                self._log.error("%s", error)
                self._end(drain=False)
                self._change(FAILED, str(error))
                return 1
        except BaseException:
            self._kill()
            self._change(FAILED, "the supervisor itself failed")
            raise
        self._end(drain=True)
        self._change(STOPPED)
        return 0

    # Starting.

    def _start_until_ready(self) -> None:
        started = time.monotonic()
        before = leftovers.scratch_directories()
        self._spawn()
        with Server(self._settings.grpc_url, self._key) as server:
            report = started + 10.0
            while not server.ready():
                self._check_running()
                if time.monotonic() > report:
                    self._log.info("still loading the models, %.0f s", time.monotonic() - started)
                    report += 10.0
                self._stop.wait(0.1)
            try:
                server.speak(SPEAK_TIMEOUT)
                first = server.speak(SPEAK_TIMEOUT)
            except ProbeError as error:
                self._check_running()
                raise StartError(f"the models are loaded, but {error}") from error
        self._note_processes()
        made = leftovers.scratch_directories() - before
        self._scratch = made if len(made) == 1 else set()  # of several, some are another server's
        self._log.info(
            "ready after %.1f s: gRPC %s, HTTP %d, metrics %d, voice %s; first audio after %.0f ms",
            time.monotonic() - started,
            self._settings.grpc_url,
            self._settings.http_port,
            self._settings.metrics_port,
            self._settings.voice,
            1000 * first,
        )

    def _spawn(self) -> None:
        installation = find_installation()
        backends, libraries = link_backends(installation, self._instance.directory / "backends")
        aliases = self._instance.directory / "aliases"
        for alias in self._settings.aliases:
            write_alias(self._settings, alias, aliases)
        command = command_line(self._settings, installation, self._identity, backends, aliases)
        self._log.debug("%s", " ".join(command))
        command += restrictions(self._key, self._settings.bind)
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(os.getpid())]
        self._process = subprocess.Popen(
            [*guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env=environment(self._settings, self._identity, libraries) | {"TRITONE_KEY": self._key},
        )
        assert self._process.stdout is not None
        logs.pump(self._process.stdout, self._log, everything=self._settings.log_level == "debug")
        self._log.info("starting tritonserver (process %d), instance %s", self._process.pid, self._identity)

    def _check_running(self) -> None:
        """Raises StartError if the server has ended or is to end."""
        assert self._process is not None
        if self._stop.is_set():
            raise StartError("stopped while starting")
        if self._process.poll() is not None:
            time.sleep(0.2)  # let the log thread pass on the last lines
            raise StartError(f"tritonserver {ending(self._process.returncode)} before it was ready")

    def _note_processes(self) -> None:
        self._stubs = leftovers.model_processes(self._identity)
        if self._ledger is None:
            self._ledger = Ledger(ledger_path(self._identity), None)
        self._diagnosis = Diagnosis()

    # Watching.

    def _watch(self) -> None:
        next_ping = next_word = 0.0
        with Server(self._settings.grpc_url, self._key) as server:
            next_word = time.monotonic() + self._settings.probe_seconds
            while not self._stop.wait(TICK_SECONDS):
                self._reap()
                verdict = self._look()
                now = time.monotonic()
                if verdict.action is Action.NONE and now >= next_ping:
                    next_ping = now + PING_SECONDS
                    verdict = self._ping(server)
                if verdict.action is Action.NONE and self._is_idle() and now >= next_word:
                    verdict, pause = self._speak(server)
                    next_word = time.monotonic() + pause
                if verdict.action is not Action.NONE:
                    self._recover(server, verdict)
                    next_word = time.monotonic() + self._settings.probe_seconds

    def _is_idle(self) -> bool:
        """Whether a word may be asked for: not of a busy server, nor of one that somebody drains by hand."""
        pulse = self._pulse
        quiet = pulse is not None and not (pulse.active or pulse.queued or pulse.draining)
        return quiet and self._settings.probe_seconds > 0

    def _look(self) -> Verdict:
        """Are the server and its model processes there? Costs no request."""
        assert self._process is not None
        if self._process.poll() is not None:
            return Verdict(Action.RESTART, f"tritonserver {ending(self._process.returncode)}")
        return self._diagnosis.processes({model for model, pid in self._stubs.items() if is_alive(pid)})

    def _ping(self, server: Server) -> Verdict:
        outcome: Pulse | ProbeError
        try:
            outcome = self._pulse = server.ping(PING_TIMEOUT)
        except ProbeError as error:
            outcome = error
        assert self._ledger is not None
        return self._diagnosis.pinged(outcome, self._ledger.silent_seconds("talker") > SILENT_SECONDS)

    def _speak(self, server: Server) -> tuple[Verdict, float]:
        """Have a word spoken; the verdict and the seconds until the next one."""
        failure = None
        try:
            server.speak(SPEAK_TIMEOUT)
        except ProbeError as error:
            failure = error
            self._log.warning("%s", error)
        return self._diagnosis.spoke(failure), self._settings.probe_seconds if failure is None else 1.0

    # Bringing back.

    def _recover(self, server: Server, verdict: Verdict) -> None:
        """Raises StartError where nothing helps or the end was asked for."""
        noticed = time.monotonic()
        self._log.error("%s: %s", verdict.reason, verdict.action.value)
        self._change(RECOVERING, verdict.reason)
        self._wait(self._backoff.failed(noticed))
        if verdict.action is Action.RELOAD_CODEC:
            done = self._reload(server, "codec")
        elif verdict.action is Action.RELOAD_TALKER:
            done = self._reload(server, "talker")
        else:
            done = False
        if not done:
            self._restart()
        self._pulse = None
        self._backoff.recovered(time.monotonic())
        self._change(READY, recovered=True)
        self._log.info("recovered after %.2f s", time.monotonic() - noticed)

    def _wait(self, seconds: float) -> None:
        if seconds:
            self._log.info("failed %d times in a row; waiting %.1f s", self._backoff.failures, seconds)
        if self._stop.wait(seconds):
            raise StartError("stopped while recovering")

    def _reload(self, server: Server, model: str) -> bool:
        """Unload and load a model whose process is dead or stuck. False where only a restart helps."""
        if model == "talker" and (silent := self._streams_without_audio()):
            self._log.warning(
                "%d streams have had no audio: only a restart ends them for their clients", silent
            )
            return False
        pid = self._stubs.get(model)
        if pid is not None and is_alive(pid):
            os.kill(pid, signal.SIGKILL)
        try:
            server.unload(model, UNLOAD_TIMEOUT)
            server.load(model, LOAD_TIMEOUT, self._stop)
            while not (self._all_loaded(server) and server.ping(PING_TIMEOUT).codec_alive):
                self._check_running()
                self._stop.wait(0.05)
            server.speak(SPEAK_TIMEOUT)
        except ProbeError as error:
            self._check_running_or_restart(error)
            return False
        leftovers.remove_dead_regions(self._identity)
        self._note_processes()
        return True

    def _check_running_or_restart(self, error: ProbeError) -> None:
        if self._stop.is_set():
            raise StartError("stopped while recovering") from error
        self._log.error("reloading did not help (%s): restarting the server", error)

    def _all_loaded(self, server: Server) -> bool:
        states = server.model_states(PING_TIMEOUT)
        return all(states.get(name) == "READY" for name in (*MODELS, "tts", *self._settings.aliases))

    def _streams_without_audio(self) -> int:
        """Streams that only the server's end can end for their clients, once the talker is dead: of them the
        codec has not seen a first message yet.
        """
        ledger = self._ledger
        assert ledger is not None
        return int(((ledger.generation > 0) & (ledger.sent == 0)).sum())

    def _restart(self) -> None:
        for attempt in range(1, FAILED_STARTS + 1):
            self._kill()
            try:
                self._start_until_ready()
                return
            except StartError as error:
                if self._stop.is_set() or attempt == FAILED_STARTS:
                    raise
                self._log.error("%s", error)
                self._wait(self._backoff.failed(time.monotonic()))

    # Ending.

    def _end(self, drain: bool) -> None:
        """Let open streams end, stop the server, leave nothing."""
        started = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            if drain:
                self._change(DRAINING)
                self._drain()
            self._terminate()
        self._kill()
        self._log.info("stopped after %.1f s", time.monotonic() - started)

    def _drain(self) -> None:
        """Wait until no stream is open, at most the drain limit; a second signal cuts it short."""
        limit = self._settings.drain_seconds
        end = time.monotonic() + limit + 2.0  # the talker itself fails what is open at the limit
        with Server(self._settings.grpc_url, self._key) as server:
            try:
                server.drain(limit, PING_TIMEOUT)
                told = False
                while time.monotonic() < end and self._signals < 2:
                    pulse = server.ping(PING_TIMEOUT)
                    if not (pulse.active or pulse.queued or self._rows_in_use()):
                        return
                    if not told:
                        self._log.info(
                            "waiting at most %.0f s for %d open streams", limit, pulse.active + pulse.queued
                        )
                        told = True
                    time.sleep(0.05)
                self._log.warning("streams are still open; they are cut off")
            except ProbeError as error:
                self._log.warning("cannot drain: %s", error)

    def _rows_in_use(self) -> int:
        """Streams that the talker has closed and the codec still has audio of."""
        ledger = self._ledger
        assert ledger is not None
        return int((np.abs(ledger.generation) != ledger.released).sum())

    def _terminate(self) -> None:
        """SIGTERM to the server and its stubs; their patience is short, ours a little longer."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(EXIT_TIMEOUT_SECONDS + 3.0)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            # An open gRPC connection, even an idle one, holds the server past its own limit.
            self._log.info("the server is held by open connections: killing it")

    def _kill(self) -> None:
        """End every process of this run and remove its shared memory."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        killed, removed = leftovers.clean(self._identity)
        leftovers.remove_empty(self._scratch)
        self._reap()
        if killed or removed:
            self._log.debug("killed processes %s, removed %s", killed, [path.name for path in removed])

    def _reap(self) -> None:
        """Collect ended stubs that were handed to us when their server died."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or (self._process is not None and ended.si_pid == self._process.pid):
                return
            os.waitpid(ended.si_pid, os.WNOHANG)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._stop.set()

    def _change(self, to: str, detail: str = "", recovered: bool = False) -> None:
        self._state = changed(self._state, to, detail, recovered)
        self._instance.write(self._state)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not (its command line is empty)."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def ending(status: int) -> str:
    """How a process ended, for people: "was killed by SIGSEGV", "ended with status 1"."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"

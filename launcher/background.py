"""Starting a server in the background, waiting for it, ending it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from launcher import leftovers
from launcher.errors import LauncherError
from launcher.instance import DRAINING, FAILED, READY, Instance, State
from launcher.logs import tail
from launcher.ports import check_free
from launcher.server import EXIT_TIMEOUT_SECONDS, check_files, resolve_device
from launcher.settings import ROOT, Settings

Report = Callable[[str], None]


class BackgroundError(LauncherError):
    """The server did not start, or not as asked for; the message tells why and the way out."""


def ensure_running(settings: Settings, asked_voice: str | None, report: Report) -> None:
    """Make sure that a server of ours listens on the port, and wait until it is ready.

    asked_voice: the voice that the user named, None where any will do. Raises BackgroundError, PortsBusyError
    or ServerError.
    """
    instance = Instance(settings.grpc_port)
    process = None
    if instance.running():
        state = instance.state()
        if state is not None and state.state == DRAINING:
            report("the server is stopping; waiting for its end")
            _until(lambda: not instance.running(), settings.drain_seconds + 30.0)
    if not instance.running():
        process = start(settings, report)
    _wait_ready(instance, process, report)
    running = instance.settings()
    if asked_voice is not None and running is not None and running.voice != asked_voice:
        raise BackgroundError(
            f"the server on port {settings.grpc_port} speaks with voice {running.voice}, not {asked_voice}. "
            "'./tritone stop' ends it; other ports (--grpc-port, --http-port, --metrics-port) let both run."
        )


def start(settings: Settings, report: Report) -> subprocess.Popen[bytes]:
    """Start the supervisor as a process of its own that outlives this one."""
    check_files(settings)
    resolve_device(settings.device)
    check_free(settings)
    instance = Instance(settings.grpc_port)
    instance.directory.mkdir(parents=True, exist_ok=True)
    report(f"starting the server (voice {settings.voice}, log {instance.log})")
    with (instance.directory / "supervisor.err").open("wb") as errors:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "launcher",
                "serve",
                *settings.to_arguments(),
                "--log-file",
                str(instance.log),
            ],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
        )


def _wait_ready(instance: Instance, process: subprocess.Popen[bytes] | None, report: Report) -> None:
    started = time.monotonic()
    next_report = started + 5.0
    seen_running = process is None
    while True:
        state = instance.state()
        running = instance.running()
        seen_running = seen_running or running
        ended = process.poll() is not None if process is not None else not running
        if state is not None and state.state == READY and running:
            if process is not None:
                report(
                    f"the server is ready after {time.monotonic() - started:.1f} s; './tritone stop' ends it"
                )
            return
        if ended and not running:
            raise BackgroundError(_failure(instance, state))
        if time.monotonic() > next_report:
            report(f"waiting for the server, {time.monotonic() - started:.0f} s")
            next_report += 5.0
        time.sleep(0.05)


def _failure(instance: Instance, state: State | None) -> str:
    detail = state.detail if state is not None and state.state == FAILED else "it ended"
    errors = tail(instance.directory / "supervisor.err")
    return (
        f"the server did not start: {detail}. Last lines of {instance.log}:\n{errors or tail(instance.log)}"
    )


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def stop(instance: Instance, report: Report) -> bool:
    """End a server: SIGTERM to its supervisor, which lets open streams end. Returns whether one ran.

    Raises BackgroundError if something is left in spite of all.
    """
    state = instance.state()
    if not instance.running():
        if state is not None:
            leftovers.clean(state.identity)  # of a supervisor that was killed
        return False
    assert state is not None
    settings = Settings.from_json(state.settings)
    report(
        f"stopping the server of port {instance.grpc_port}; open streams get {settings.drain_seconds:.0f} s"
    )
    os.kill(state.pid, signal.SIGTERM)
    limit = settings.drain_seconds + EXIT_TIMEOUT_SECONDS + 20.0
    if not _until(lambda: not instance.running(), limit):
        report("it does not end; killing it")
        os.kill(state.pid, signal.SIGKILL)
        _until(lambda: not instance.running(), 5.0)
    leftovers.clean(state.identity)
    remaining = [*leftovers.processes(state.identity), *leftovers.shared_memory(state.identity)]
    if remaining:
        raise BackgroundError(f"left behind: {', '.join(map(str, remaining))}")
    return True


def describe(instance: Instance) -> str | None:
    """One line on a running server, None if it does not run."""
    state = instance.state()
    if state is None or not instance.running():
        return None
    settings = Settings.from_json(state.settings)
    detail = f" ({state.detail})" if state.detail else ""
    again = f", brought back {state.recoveries} times" if state.recoveries else ""
    return (
        f"gRPC {settings.grpc_url}: {state.state}{detail} for {time.time() - state.since:.0f} s, "
        f"voice {settings.voice}, HTTP {settings.http_port}, metrics {settings.metrics_port}, "
        f"supervisor {state.pid}{again}, log {instance.log}"
    )

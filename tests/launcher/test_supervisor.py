"""The supervisor over a stand-in for the server that starts in a moment. With the real one: tests/e2e."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher import leftovers
from launcher.instance import Instance
from tests.e2e.servers import free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Supervised:
    """A supervisor in a process of its own; `script` says how its server behaves."""

    def __init__(self, folder, **script):
        self.folder = folder
        self.ports = free_ports(3)
        self.instance = Instance(self.ports[0])
        self.script(**script)
        binary = folder / "tritonserver"
        binary.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_tritonserver.py"} "$@"\n')
        binary.chmod(0o755)
        self.process = None

    def script(self, **script):
        draft = self.folder / "draft"
        draft.write_text(json.dumps(script))
        draft.replace(self.folder / "script.json")

    def start(self, *options):
        names = ("--grpc-port", "--http-port", "--metrics-port")
        ports = [f"{name}={port}" for name, port in zip(names, self.ports, strict=True)]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "serve_fake.py"),
                    str(self.folder / "tritonserver"),
                    *ports,
                    *options,
                ],
                env={**os.environ, "FAKE_SCRIPT": str(self.folder / "script.json"), "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def state(self):
        return self.instance.state()

    def wait(self, condition, seconds=20.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{self.state()}\n{self.log}"
            time.sleep(0.02)
        return self

    def until_ready(self, recoveries=0):
        def ready():
            assert self.process.poll() is None, self.log
            state = self.state()
            return (
                self.instance.running()
                and state.pid == self.process.pid
                and (state.state, state.recoveries) == ("ready", recoveries)
            )

        self.wait(lambda: self.state() is not None)
        return self.wait(ready)

    def end(self):
        """Exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    @property
    def log(self):
        return (self.folder / "log").read_text()

    @property
    def calls(self):
        return (self.folder / "script.calls").read_text().split("\n")

    @property
    def starts(self):
        return len((self.folder / "script.starts").read_text())

    def server(self):
        found = leftovers.processes(self.state().identity)
        return next(pid for pid in found if b"fake_tritonserver" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def nothing_is_left(self, identity=None):
        identity = identity or self.state().identity
        return leftovers.processes(identity) == [] and leftovers.shared_memory(identity) == []


@pytest.fixture
def supervised(tmp_path):
    made = []

    def make(**script):
        made.append(Supervised(tmp_path, **script))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        if one.state() is not None:
            leftovers.clean(one.state().identity)


def test_a_life_without_faults(supervised):
    one = supervised().start().until_ready()
    identity = one.state().identity
    assert sorted(leftovers.model_processes(identity)) == ["codec", "talker"]
    assert one.end() == 0
    assert one.calls[-2:] == ["drain", "ping"]
    assert one.state().state == "stopped"
    assert one.nothing_is_left()
    assert not one.instance.running()


def test_a_server_that_does_not_start_ends_the_supervisor_with_the_reason(supervised):
    one = supervised(fail=True).start()
    assert one.process.wait(20) == 1
    assert one.state().state == "failed"
    assert "tritonserver ended with status 1 before it was ready" in one.state().detail
    assert "a model cannot be loaded" in one.log
    assert one.starts == 1
    assert one.nothing_is_left()


def test_a_server_that_cannot_speak_is_not_ready(supervised):
    one = supervised(mute=True).start()
    assert one.process.wait(20) == 1
    assert "no audio came" in one.state().detail
    assert one.nothing_is_left()


@pytest.mark.parametrize("model", ["talker", "codec"])
def test_a_dead_model_is_unloaded_and_loaded(supervised, model):
    one = supervised().start().until_ready()
    identity = one.state().identity
    os.kill(leftovers.model_processes(identity)[model], signal.SIGKILL)
    one.until_ready(recoveries=1)
    assert [call for call in one.calls if model in call] == [f"unload {model}", f"load {model}"]
    assert one.starts == 1
    assert sorted(leftovers.model_processes(identity)) == ["codec", "talker"]
    regions = [path for path in leftovers.shared_memory(identity) if "ledger" not in path.name]
    assert len(regions) == 2, "the region of the dead process is still there"
    assert "recovered after" in one.log
    assert one.end() == 0
    assert one.nothing_is_left()


def test_a_talker_that_is_alive_but_stuck_is_killed_and_loaded(supervised):
    one = supervised().start().until_ready()
    stuck = leftovers.model_processes(one.state().identity)["talker"]
    one.script(silent=True)
    one.wait(lambda: "load talker" in one.calls)
    one.script(silent=False)
    one.until_ready(recoveries=1)
    assert leftovers.model_processes(one.state().identity)["talker"] != stuck
    assert one.end() == 0


def test_a_dead_server_is_started_again_and_its_processes_are_ended(supervised):
    one = supervised().start().until_ready()
    identity = one.state().identity
    old = set(leftovers.processes(identity))
    os.kill(one.server(), signal.SIGKILL)
    one.until_ready(recoveries=1)
    assert one.starts == 2
    assert old.isdisjoint(leftovers.processes(identity))
    assert "tritonserver was killed by SIGKILL" in one.log
    assert one.end() == 0
    assert one.nothing_is_left()


def test_a_server_that_hangs_is_killed_and_started_again(supervised):
    one = supervised().start().until_ready()
    os.kill(one.server(), signal.SIGSTOP)
    one.until_ready(recoveries=1)
    assert one.end() == 0
    assert one.nothing_is_left()


def test_an_idle_server_that_cannot_speak_any_more_is_started_again(supervised):
    one = supervised().start("--probe-seconds=0.2").until_ready()
    one.script(mute=True)
    one.wait(lambda: "no word can be spoken" in one.log)
    one.script(mute=False)
    one.wait(lambda: one.state().state == "ready" and one.state().recoveries >= 1)
    assert one.starts >= 2
    assert one.end() == 0


def test_a_busy_server_is_not_asked_to_speak(supervised):
    one = supervised(active=3).start("--probe-seconds=0.1", "--drain-seconds=0").until_ready()
    one.script(mute=True, active=3)
    pings = len(one.calls)
    one.wait(lambda: len(one.calls) > pings + 5)
    assert one.state().recoveries == 0


def test_a_crash_loop_backs_off_and_ends(supervised):
    one = supervised(fail_from=2).start().until_ready()
    os.kill(one.server(), signal.SIGKILL)
    assert one.process.wait(20) == 1
    assert one.starts == 6
    waits = [
        float(line.split("waiting ")[1].split()[0]) for line in one.log.splitlines() if "in a row" in line
    ]
    assert len(waits) == 4 and waits == sorted(waits)
    assert one.state().state == "failed"
    assert one.nothing_is_left()


def test_a_server_that_ignores_sigterm_is_killed(supervised):
    one = supervised(deaf=True).start().until_ready()
    assert one.end() == 0
    assert "held by open connections" in one.log
    assert one.nothing_is_left()


def test_streams_that_do_not_end_are_cut_off_at_the_limit(supervised):
    one = supervised(active=2).start("--drain-seconds=0.2").until_ready()
    started = time.monotonic()
    assert one.end() == 0
    assert 2.0 < time.monotonic() - started < 10.0
    assert "waiting at most 0 s for 2 open streams" in one.log
    assert "cut off" in one.log
    assert one.nothing_is_left()


def test_a_second_signal_cuts_draining_short(supervised):
    one = supervised(active=2).start("--drain-seconds=600").until_ready()
    one.process.send_signal(signal.SIGINT)
    one.wait(lambda: one.state().state == "draining" and "open streams" in one.log)
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(20) == 0
    assert one.nothing_is_left()


def test_a_signal_while_starting_ends_it(supervised):
    one = supervised().start()
    one.wait(lambda: one.state() is not None)
    assert one.end() == 0
    assert one.state().state == "stopped"
    assert one.nothing_is_left()


def test_with_the_supervisor_dies_its_server_and_the_next_one_cleans_up(supervised):
    one = supervised().start().until_ready()
    identity = one.state().identity
    one.process.kill()
    one.process.wait()
    one.wait(lambda: leftovers.processes(identity) == [])
    assert leftovers.shared_memory(identity) != []
    one.start().until_ready()
    assert one.state().identity != identity
    assert one.nothing_is_left(identity)
    assert one.end() == 0


def test_a_second_supervisor_on_the_same_port_is_refused(supervised):
    one = supervised().start().until_ready()
    first = one.process
    one.start()
    second, one.process = one.process, first
    assert second.wait(20) == 1
    assert "already listens on gRPC port" in one.log
    assert one.end() == 0

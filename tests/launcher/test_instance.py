"""What is known of a background server: a lock that lives and dies with its supervisor, and a state file."""

import json
import signal
import subprocess
import sys

from launcher.instance import READY, RECOVERING, Instance, all_instances, changed, new_state
from launcher.settings import Settings


def test_only_the_lock_says_that_it_runs():
    instance = Instance(9001)
    assert not instance.running()
    with instance.hold() as ours:
        assert ours
        assert instance.running()
        with Instance(9001).hold() as second:
            assert not second
    assert not instance.running()


def test_a_killed_supervisor_does_not_seem_to_run():
    code = (
        "import time; from launcher.instance import Instance\n"
        "with Instance(9001).hold(): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    assert Instance(9001).running()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not Instance(9001).running()


def test_the_state_is_read_back_with_the_settings():
    instance = Instance(9001)
    instance.directory.mkdir(parents=True)
    assert instance.state() is None
    settings = Settings(grpc_port=9001, voice="wren", aliases=("a",))
    state = new_state(settings)
    instance.write(state)
    assert instance.state() == state
    assert instance.settings() == settings


def test_the_state_of_another_version_is_read_as_far_as_it_is_known():
    instance = Instance(9001)
    instance.directory.mkdir(parents=True)
    state = new_state(Settings(grpc_port=9001))
    instance.write(state)
    path = instance.directory / "state.json"
    values = json.loads(path.read_text())
    settings = json.loads(values["settings"]) | {"later": 1}
    path.write_text(json.dumps(values | {"later": 1, "settings": json.dumps(settings)}))
    assert instance.state().identity == state.identity
    assert instance.settings() == Settings(grpc_port=9001)


def test_recoveries_are_counted_and_every_start_has_a_name_of_its_own():
    first, second = new_state(Settings()), new_state(Settings())
    assert first.identity != second.identity
    assert first.identity.startswith("8001-")
    state = changed(first, RECOVERING, "the talker's process is gone")
    state = changed(state, READY, recovered=True)
    assert (state.state, state.recoveries, state.detail, state.identity) == (READY, 1, "", first.identity)


def test_all_instances_are_found_by_port(tmp_path):
    assert all_instances() == []
    for port in (9002, 9001):
        Instance(port).directory.mkdir(parents=True)
    (Instance(9001).directory.parent / "install.log").write_text("")
    assert [instance.grpc_port for instance in all_instances()] == [9001, 9002]

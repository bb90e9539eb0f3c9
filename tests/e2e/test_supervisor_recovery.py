"""The supervisor on the real server: what it brings back is whole, and what it ends leaves nothing."""

import os
import signal
import time

from launcher import leftovers
from launcher.background import stop
from launcher.instance import Instance
from launcher.probe import Server
from tests.e2e.servers import running_server


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_after_a_dead_codec_and_a_dead_talker_everything_is_as_before(tmp_path):
    with running_server(tmp_path, probe_seconds=0.0, aliases=("cosyvoice2",)) as settings:
        instance = Instance(settings.grpc_port, tmp_path)
        identity = instance.state().identity
        before = {path.name for path in leftovers.shared_memory(identity)}
        with Server(settings.grpc_url) as server:
            assert server.speak(10.0, model="cosyvoice2") > 0.0
            for count, model in enumerate(("codec", "talker"), start=1):
                dead = leftovers.model_processes(identity)[model]
                os.kill(dead, signal.SIGKILL)
                wait_for(lambda count=count: instance.state().recoveries == count)
                assert instance.state().state == "ready"
                assert leftovers.model_processes(identity)[model] != dead
                assert server.ping(10.0).codec_alive
                for name in ("tts", "cosyvoice2"):
                    assert server.speak(10.0, model=name) > 0.0
        after = {path.name for path in leftovers.shared_memory(identity)}
        assert len(after) == len(before), "a dead process's region is still there, or the ledger is not"
        assert stop(instance, lambda message: None)
        assert not instance.running()
        assert leftovers.processes(identity) == leftovers.shared_memory(identity) == []
        assert instance.state().state == "stopped"

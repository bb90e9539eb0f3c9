"""What a run leaves is found by its name and removed; other runs keep theirs."""

import os
import secrets
import subprocess
import sys

import pytest

from launcher import leftovers


@pytest.fixture
def run():
    """Names of two runs that exist nowhere else."""
    names = [f"1-{secrets.token_hex(6)}" for _ in range(2)]
    yield names
    for name in names:
        leftovers.clean(name)


def process(identity):
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
        env={**os.environ, "TRITONE_INSTANCE": identity},
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    child.stdout.close()
    return child


def shared(name):
    path = leftovers.SHARED_MEMORY / name
    path.write_bytes(b"x")
    return path


def test_processes_and_files_of_one_run_are_removed(run):
    ours, theirs = run
    mine, other = process(ours), process(theirs)
    files = [shared(f"tritone-{ours}{suffix}") for suffix in ("_1-2", ".ledger", ".ledger.talker")]
    kept = shared(f"tritone-{theirs}.ledger")
    similar = shared(f"tritone-{ours}f_1")  # another run whose name begins alike
    try:
        assert leftovers.processes(ours) == [mine.pid]
        assert leftovers.shared_memory(ours) == sorted(files)
        killed, removed = leftovers.clean(ours)
        assert (killed, sorted(removed)) == ([mine.pid], sorted(files))
        assert mine.wait(5) == -9
        assert other.poll() is None
        assert kept.exists() and similar.exists()
        assert leftovers.processes(ours) == leftovers.shared_memory(ours) == []
    finally:
        similar.unlink()
        other.kill()
        other.wait()
        mine.wait()


def test_a_zombie_is_not_waited_for(run):
    child = process(run[0])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not collected
    assert leftovers.processes(run[0]) == []
    child.wait()


def test_only_regions_without_a_process_are_dead(run, monkeypatch):
    identity = run[0]
    used, dead = shared(f"tritone-{identity}_used"), shared(f"tritone-{identity}_dead")
    ledger = shared(f"tritone-{identity}.ledger")
    stub = subprocess.Popen(
        ["/bin/sleep", "60"],
        env={"TRITONE_INSTANCE": identity},
    )
    monkeypatch.setattr(leftovers, "model_processes", lambda name: {"talker": stub.pid})
    real = leftovers.Path.read_bytes

    def read_bytes(path):
        command = b"stub\0model.py\0" + used.name.encode() + b"\0talker_0_0\0"
        return command if str(path) == f"/proc/{stub.pid}/cmdline" else real(path)

    monkeypatch.setattr(leftovers.Path, "read_bytes", read_bytes)
    try:
        assert leftovers.remove_dead_regions(identity) == [dead]
        assert used.exists() and ledger.exists()
    finally:
        stub.kill()
        stub.wait()


def test_a_scratch_directory_in_use_stays(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    leftovers.remove_empty({tmp_path / "empty", tmp_path / "full", tmp_path / "gone"})
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["full"]

"""The load generator and a paced voice on the real server: every sample of every stream arrives, once and in
order."""

import asyncio
import json

import pytest

from backends.voice import load_voice
from bench.arrivals import ClosedLoop, OpenLoop
from bench.load import LoadGenerator
from bench.paced_audio import PacedCheck
from bench.requests import paced_jobs
from bench.run import main
from bench.server import BenchServer, ServerPlan, voice_path
from bench.session import Bar, Plan, measure_load


@pytest.fixture(scope="module")
def server():
    # The H100's pace without its prefill: a test should not wait for it.
    with BenchServer(
        ServerPlan("paced-h100", {"options": {"costs": {"step": 0.002, "prefill": 0.0}}})
    ) as started:
        yield started


def test_every_sample_of_every_stream_arrives(server):
    segment_chars = load_voice(voice_path("paced-h100")).segment_chars
    jobs = paced_jobs(60.0, 0.8, segment_chars)

    async def measure():
        async with LoadGenerator(server.url) as generator:
            plan = Plan(requests=24, warmup=0, rounds=1)
            closed = await measure_load(generator, ClosedLoop(12), plan, jobs, Bar(), read_usage=server.usage)
            opened = await measure_load(generator, OpenLoop(50.0), plan, jobs, Bar())
            return closed, opened

    for measured in asyncio.run(measure()):
        point = measured.point
        assert point.errors() == {}
        assert point.faults == ()
        assert point.median()["success"] == 1.0
        assert len(measured.traces) == 24
    assert {"tritonserver", "talker", "codec"} <= set(server.usage())


def test_the_clock_stamps_tell_the_talkers_own_time(server):
    (job,) = paced_jobs(40.0, 0.0, 300)(1, 5)

    async def speak():
        async with LoadGenerator(server.url) as generator:
            return await generator.run(ClosedLoop(1), [job])

    (outcome,) = asyncio.run(speak()).outcomes
    checked = outcome.check
    assert isinstance(checked, PacedCheck)
    # Four frames, the adaptive schedule's first chunk, take four steps of 2 ms.
    assert checked.work >= 4 * 0.002 * 0.8
    assert checked.work + checked.made_to_arrival <= outcome.metrics.ttfp_seconds + 1e-3


def test_a_request_with_a_bad_option_counts_as_failed(server):
    (job,) = paced_jobs(10.0, 0.0, 300, {"codec_chunk_frames": 7})(1, 0)

    async def speak():
        async with LoadGenerator(server.url) as generator:
            return await generator.run(ClosedLoop(1), [job])

    (outcome,) = asyncio.run(speak()).outcomes
    assert outcome.metrics.error_code == "INVALID_ARGUMENT"


def test_the_command_writes_table_json_csv_and_plots(server, tmp_path, capsys):
    arguments = ["--url", server.url, "--voice", "paced-h100", "--concurrency", "1,4", "--requests", "4"]
    files = ["--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv", "--plots", tmp_path]
    assert main([*arguments, "--rounds", "1", "--warmup", "0", "--mean-frames", "20", *map(str, files)]) == 0
    printed = capsys.readouterr().out
    assert "Model time is simulated" in printed
    assert "C4" in printed
    document = json.loads((tmp_path / "a.json").read_text())
    assert [point["label"] for point in document["points"]] == ["C1", "C4"]
    assert [len(point["traces"]) for point in document["points"]] == [4, 8]
    assert (tmp_path / "loads.png").exists()

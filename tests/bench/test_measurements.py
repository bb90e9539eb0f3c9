"""The named measurements: what they start, how they compare. The measuring itself is not a test's
business."""

import pytest
import yaml

from backends.families.paced import MACHINES
from backends.voice import load_voice
from bench import experiment_8124, pipeline
from bench.__main__ import main
from bench.arrivals import ClosedLoop, OpenLoop
from bench.experiment_8124 import ARMS, comparison, server_plan
from bench.peers.compare import SYSTEMS, plan_of
from bench.peers.plans import FRAME_BLS, POLLING
from bench.pipeline import Throughput, ratios
from bench.run import build_parser, enough, loads_of
from bench.server import BenchError, ServerPlan, changed_voice, voice_path
from bench.session import Plan


def schedule_of(plan: ServerPlan, tmp_path):
    path = tmp_path / "voice.yaml"
    path.write_text(yaml.safe_dump(changed_voice(plan)))
    return load_voice(path)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("arm", ARMS)
def test_arms_differ_in_nothing_but_the_schedule(arm, batched, tmp_path):
    voice = schedule_of(server_plan("paced-ascend-910b", ARMS[arm], batched), tmp_path)
    assert voice.engine.max_slots == 8
    assert voice.engine.codec_batch_buckets == ((1, 2, 4, 8, 16, 32, 64) if batched else (1,))
    assert voice.options == load_voice(voice_path("paced-ascend-910b")).options
    assert voice.stream.warnings == ()


def test_the_arms_are_the_published_ones_and_ours(tmp_path):
    ladders = {
        arm: schedule_of(server_plan("paced-ascend-910b", ARMS[arm], True), tmp_path).stream for arm in ARMS
    }
    assert ladders["off"].ladder == (1, 15)
    assert ladders["off"].ramp == ()
    assert ladders["static"].ramp == (2, 4, 8, 15)
    assert not ladders["static"].adaptive
    assert ladders["adaptive"].adaptive
    assert ladders["adaptive"] == load_voice(voice_path("paced-ascend-910b")).stream
    assert ladders["dynamic"].initial_dynamic


def test_published_rows_stand_in_the_comparison_before_anything_is_measured():
    assert comparison({}, MACHINES["ascend-910b"]).row_count == len(experiment_8124.PUBLISHED)


@pytest.mark.parametrize("arm", ARMS)
def test_the_simulator_plays_each_arm(arm):
    cells = experiment_8124.simulate(arm, True, MACHINES["ascend-910b"], 1, 8)
    assert len(cells) == 6
    assert all(float(cell) >= 0 for cell in cells)


def result(system: str, concurrency: int, speed: float | None, died: str | None = None) -> Throughput:
    return Throughput(system, concurrency, speed, None, None, None, {}, died)


def test_a_baseline_that_died_is_no_denominator():
    lines = ratios(
        [
            result("ours", 1, 3000.0),
            result("ours", 32, 30_000.0),
            result("frame BLS", 1, 1000.0),
            result("frame BLS", 32, 20.0, "28 of 32 streams failed"),
        ]
    )
    assert lines == ["1 streams: 3.0 x per-frame BLS", "best over best: 30.0 x per-frame BLS"]


def test_without_a_baseline_there_is_no_ratio():
    assert ratios([result("ours", 1, 3000.0), result("frame BLS", 1, None, "hung")]) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_all_systems_get_the_same_voice_and_ladder(system, tmp_path):
    with plan_of(system, "paced-h100", 8) as plan:
        voice = schedule_of(plan, tmp_path)
        assert voice.stream.ramp == (2, 4, 8, 15)
        assert voice.options == {"machine": "h100"}
        if plan.repository is not None:
            assert (plan.repository / "talker" / "config.pbtxt").is_file()
        if system == "polling, instance a stream":
            assert "count: 8" in (plan.repository / "tts" / "config.pbtxt").read_text()
            text = (POLLING.repository / "tts" / "config.pbtxt").read_text()
            assert "count: 4" in text


def test_the_peers_repositories_are_whole():
    for plan in (FRAME_BLS, POLLING):
        for model in ("talker", "codec", "tts"):
            assert (plan.repository / model / "config.pbtxt").is_file()
            assert (plan.repository / model / "1").is_dir()


def test_the_first_chunk_of_the_stepped_voice_is_known_before_it_runs():
    voice = pipeline.load_voice_of(pipeline.STEPPED)
    assert voice.stream.ramp[0] == 2
    assert voice.options["costs"] == {"step": 0.016}


def test_loads_from_the_command_line():
    parser = build_parser()
    assert loads_of(parser.parse_args([])) == [ClosedLoop(n) for n in (1, 4, 8, 16, 32, 64)]
    assert loads_of(parser.parse_args(["--rate", "0.5,2"])) == [OpenLoop(0.5), OpenLoop(2.0)]


def test_every_client_of_a_closed_loop_has_requests_to_send():
    assert enough(Plan(requests=40), ClosedLoop(64)).requests == 128
    assert enough(Plan(requests=40), ClosedLoop(8)).requests == 40
    assert enough(Plan(requests=40), OpenLoop(64.0)).requests == 40


def test_what_cannot_be_measured_is_said(capsys):
    with pytest.raises(BenchError, match=r"no such voice; there are .*paced-zero"):
        voice_path("nobody")
    assert main(["--voice", "nobody"]) == 1
    assert "no such voice" in capsys.readouterr().err
    assert main(["experiment-8124", "--arms", "steep"]) == 1
    assert "choose among off, static, adaptive, dynamic" in capsys.readouterr().err
    assert main(["verify", "--voice", "paced-zero"]) == 1
    assert "for voices that speak" in capsys.readouterr().err
    assert main(["--concurrency", "0", "--voice", "paced-zero"]) == 1
    assert "concurrency is 0" in capsys.readouterr().err

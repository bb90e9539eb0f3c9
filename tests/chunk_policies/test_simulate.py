"""The simulator's command line."""

import json

import pytest

from chunk_policies.simulate import main


def test_prints_one_line_an_arm_with_every_definition(capsys):
    assert (
        main(["--requests", "8", "--rounds", "1", "--arm", "off", "--arm", "mine=2,4", "--arm", "dynamic"])
        == 0
    )
    output = capsys.readouterr().out
    assert "ascend-910b" in output
    assert "simulated" in output
    assert "cliff from 4 to 15" in output
    header, off, mine, dynamic = output.strip().splitlines()[-4:]
    for title in ("TTFP ms", "RTF", "A cont %", "underrun ms", "B C50 %", "C silence ms", "D on time %"):
        assert title in header
    assert (off.split()[0], mine.split()[0], dynamic.split()[0]) == ("off", "mine", "dynamic")
    assert len({len(line) for line in (header, off, mine)}) == 1


def test_arms_of_any_kind_and_a_machine_of_one_s_own(capsys, tmp_path):
    machine = tmp_path / "mine.json"
    machine.write_text('{"frame_seconds": 0.08, "step": 0.02}')
    report = tmp_path / "report.json"
    arguments = ["--machine", str(machine), "--set", "step=0.01", "--order", "fifo", "--codec-batch", "2"]
    arguments += ["--arm", "adaptive", "--arm", "adaptive:1,2,15", "--arm", '{"codec_chunk_frames": 5}']
    arguments += ["--requests", "4", "--rounds", "2", "--windowed", "--left-context", "4", "--ranges"]
    assert main([*arguments, "--json", str(report)]) == 0
    written = json.loads(report.read_text())
    assert written["machine"]["step"] == 0.01
    assert written["machine"]["codec_batch"] == 2
    assert [len(rounds) for rounds in written["rounds"].values()] == [2, 2, 2]
    assert written["rounds"]["adaptive"][0]["streams"] == 4


def test_writes_a_picture(tmp_path):
    picture = tmp_path / "buffers.png"
    assert main(["--requests", "4", "--rounds", "1", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--arm", "2"], "--arm 2: codec_chunk_ramp = '2'"),
        (["--arm", "{"], "not valid JSON"),
        (["--arm", '{"ramp": 1}'], "ramp = 1: unknown key"),
        (["--machine", "tpu"], "machine = 'tpu'"),
        (["--set", "step"], "must be FIELD=NUMBER"),
        (["--set", "step=fast"], "must be FIELD=NUMBER"),
        (["--set", "steps=1"], "steps = 1.0: unknown"),
        (["--steady", "0"], "codec_chunk_frames = 0"),
    ],
)
def test_mistakes_are_named_and_end_with_status_2(capsys, arguments, problem):
    assert main(arguments) == 2
    assert problem in capsys.readouterr().err

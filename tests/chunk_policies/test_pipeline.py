"""The simulator's pipeline, against schedules worked out by hand and general laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_policies import ChunkSchedule
from chunk_policies.machine import PRESETS, Machine, load_machine
from chunk_policies.pipeline import Workload, play

RAMP = ChunkSchedule.from_mapping({"codec_chunk_ramp": [1, 2, 4], "codec_chunk_frames": 4})


def arrivals(machine: Machine, schedule: ChunkSchedule, **workload) -> list[list[float]]:
    streams = play(machine, schedule, Workload(**{"frames_spread": 0.0, **workload}))
    return [[round(arrival, 6) for arrival, _ in stream.packets] for stream in streams]


def test_one_stream_by_hand():
    machine = Machine("m", frame_seconds=1.0, prefill=10.0, step=2.0, codec_call=0.5, codec_frame=0.1)
    # Frames at 12, 14, ..., 26; chunks of 1, 2, 4 and 1 frames complete at 12, 16, 24 and 26. The last is
    # ready one step after the third and padded to 1 frame.
    assert arrivals(machine, RAMP, concurrency=1, requests=1, frames=8) == [[12.6, 16.7, 24.9, 26.6]]


def test_the_next_request_follows_the_last_packet():
    machine = Machine("m", frame_seconds=1.0, prefill=1.0, step=1.0)
    assert arrivals(machine, RAMP, concurrency=1, requests=2, frames=3) == [[2.0, 4.0], [6.0, 8.0]]


def test_a_step_serves_all_streams_and_may_cost_more_for_more():
    machine = Machine("m", frame_seconds=1.0, step=1.0, step_per_stream=0.5)
    one = ChunkSchedule.from_mapping({"codec_chunk_frames": 1})
    assert arrivals(machine, one, concurrency=2, requests=2, frames=2) == [[2.0, 4.0], [2.0, 4.0]]


def test_an_unbatched_codec_takes_one_chunk_after_the_other_and_a_batched_one_all():
    machine = Machine("m", frame_seconds=1.0, step=10.0, codec_call=1.0, codec_row=0.25)
    one = ChunkSchedule.from_mapping({"codec_chunk_frames": 1})
    single = arrivals(machine, one, concurrency=3, requests=3, frames=1)
    batched = arrivals(machine.changed({"codec_batch": 2}), one, concurrency=3, requests=3, frames=1)
    assert single == [[11.25], [12.5], [13.75]]
    assert batched == [[11.5], [11.5], [12.75]]


def test_windows_cost_their_context():
    machine = Machine("m", frame_seconds=1.0, step=1.0, codec_frame=0.01, codec_context_frame=0.1)
    windowed = ChunkSchedule.from_mapping({"codec_chunk_frames": 2, "codec_left_context_frames": 1})
    assert arrivals(machine, windowed, concurrency=1, requests=1, frames=4, windowed=True) == [[2.02, 4.12]]


def test_deadline_order_serves_the_listener_that_runs_dry_first():
    """Two listeners with audio left, one about to run dry: first chunks first or by age would let it wait."""
    slow = Machine(
        "m", frame_seconds=0.08, step=0.013, codec_call=0.04, jitter=0.05, prefill=1.0, prefill_spread=0.2
    )
    underruns = {
        order: max(
            stream.quality().underrun
            for stream in play(slow.changed({"order": order}), RAMP, Workload(concurrency=8, requests=40))
        )
        for order in ("deadline", "first-chunks", "fifo")
    }
    assert underruns["deadline"] < underruns["fifo"] < underruns["first-chunks"]


def test_the_same_seed_plays_the_same_and_arms_get_the_same_requests():
    machine = PRESETS["ascend-910b"]
    off = ChunkSchedule.from_mapping({"initial_codec_chunk_frames": 1})
    first, again, other = (
        play(machine, schedule, Workload(requests=12, seed=3)) for schedule in (off, off, RAMP)
    )
    assert [stream.packets for stream in first] == [stream.packets for stream in again]
    assert [stream.frames for stream in first] == [stream.frames for stream in other]
    assert [stream.frames for stream in first] != [
        stream.frames for stream in play(machine, off, Workload(requests=12, seed=4))
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Workload,
        concurrency=st.integers(1, 5),
        requests=st.integers(1, 12),
        frames=st.floats(1, 40),
        frames_spread=st.floats(0, 1),
        windowed=st.booleans(),
    ),
    st.sampled_from(["deadline", "first-chunks", "fifo"]),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_frame_is_delivered_once_in_order(workload, order, codec_batch, adaptive):
    machine = PRESETS["ascend-910b"].changed({"order": order, "codec_batch": codec_batch})
    schedule = ChunkSchedule.from_mapping(
        {"codec_chunk_ramp": [1, 2, 4, 8], "codec_left_context_frames": 3, "codec_chunk_adaptive": adaptive}
    )
    streams = play(machine, schedule, workload)
    assert len(streams) == workload.requests
    for stream in streams:
        assert sum(stream.sizes) == stream.frames
        assert sum(seconds for _, seconds in stream.packets) == pytest.approx(0.08 * stream.frames)
        times = [stream.start, *(arrival for arrival, _ in stream.packets)]
        assert times == sorted(times)
    open_at = [sum(s.start <= stream.start < s.packets[-1][0] for s in streams) for stream in streams]
    assert max(open_at) <= workload.concurrency


class TestMachine:
    def test_a_file_gives_the_costs(self, tmp_path):
        path = tmp_path / "mine.json"
        path.write_text('{"frame_seconds": 0.04, "step": 0.01, "order": "fifo", "sources": ["measured"]}')
        machine = load_machine(str(path))
        assert (machine.name, machine.frame_seconds, machine.step) == ("mine", 0.04, 0.01)
        assert machine.sources == ("measured",)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ('{"frame_seconds": 0}', "frame_seconds = 0: must be above 0"),
            ('{"frame_seconds": 0.08, "step": -1}', "step = -1: must be a number, 0 or more"),
            ('{"frame_seconds": 0.08, "stpe": 1}', "stpe = 1: unknown"),
            ('{"frame_seconds": 0.08, "codec_batch": 0}', "codec_batch = 0"),
            ('{"frame_seconds": 0.08, "order": "lifo"}', "order = 'lifo': must be one of deadline"),
            ('{"step": 1}', "frame_seconds"),
            ("[1]", "must be an object"),
            ("{", "not valid JSON"),
        ],
    )
    def test_bad_files_are_refused(self, tmp_path, text, problem):
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=problem):
            load_machine(str(path))

    def test_unknown_machines_are_refused_with_the_choice(self):
        with pytest.raises(ValueError, match="ascend-910b, h100, qwen3-910b"):
            load_machine("tpu")

    @pytest.mark.parametrize("machine", PRESETS.values(), ids=lambda machine: machine.name)
    def test_every_cost_of_a_preset_has_a_source(self, machine):
        text = " ".join(machine.sources)
        assert "step" in text
        assert "codec" in text or "everything else" in text

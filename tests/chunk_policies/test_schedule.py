"""One configuration, checked once: what it accepts, what it refuses, and which sizes it can produce."""

from typing import ClassVar

import pytest
from chunk_streams import new_sizes, play
from hypothesis import given, settings
from hypothesis import strategies as st

from chunk_policies import (
    AdaptiveChunkPolicy,
    ChunkSchedule,
    ScheduleError,
    StreamBuffer,
    dynamic_initial_size,
    dynamic_initial_sizes,
)

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
FRAME = 0.08


def schedule(**values) -> ChunkSchedule:
    return ChunkSchedule.from_mapping(values, source="voices/test.yaml")


class TestDefaults:
    def test_an_empty_mapping_is_steady_chunks_of_15(self):
        plain = schedule()
        assert (plain.steady, plain.initial, plain.left_context, plain.ramp) == (15, 0, 0, ())
        assert not plain.adaptive
        assert not plain.initial_dynamic
        assert plain.ladder == (15,)
        assert plain.warnings == ()
        assert new_sizes(play(plain.policy(frame_seconds=FRAME), 40)) == [15, 15, 10]

    @pytest.mark.parametrize("off", [None, False, "off"])
    def test_a_ramp_that_is_null_or_absent_is_off(self, off):
        assert schedule(codec_chunk_ramp=off, initial_codec_chunk_frames=1) == schedule(
            initial_codec_chunk_frames=1
        )

    @pytest.mark.parametrize("key", ["codec_chunk_frames", "codec_chunk_adaptive", "codec_chunk_min_frames"])
    def test_any_null_key_has_its_default(self, key):
        assert schedule(**{key: None}) == schedule()


class TestRamp:
    @pytest.mark.parametrize("ramp", [[2, 4, 8, 15], (2, 4, 8, 15), "2,4,8,15", " 2, 4,8 ,15 "])
    def test_list_or_comma_separated_text(self, ramp):
        assert schedule(codec_chunk_ramp=ramp).ramp == (2, 4, 8, 15)

    def test_chunk_k_has_the_kth_size_then_steady(self):
        ramp = schedule(codec_chunk_ramp=[2, 4, 8, 15], initial_codec_chunk_frames=1)
        assert new_sizes(play(ramp.policy(frame_seconds=FRAME), 75)) == [2, 4, 8, 15, 15, 15, 15, 1]

    def test_windowed_codecs_get_context_and_stateful_ones_none(self):
        ramp = schedule(codec_chunk_ramp=[4, 8, 16], codec_chunk_frames=25, codec_left_context_frames=25)
        windows = [chunk.num_items for chunk in play(ramp.policy(frame_seconds=FRAME, windowed=True), 78)]
        assert windows == [4, 12, 28, 50, 50, 25]
        assert [chunk.num_items for chunk in play(ramp.policy(frame_seconds=FRAME), 77)] == [4, 8, 16, 25, 24]

    @pytest.mark.parametrize(
        "ramp",
        [
            [],
            "",
            [2],
            "15",
            ["2", "4"],
            [2, 4.0],
            [2, True],
            [2, None],
            "2,,4",
            "2,x",
            "2;4",
            [0, 4],
            [2, -4],
            "2,-4",
            [2, 20_000],
            [1] * 65,
            "1," * 2000,
            15,
            2.5,
            True,
            {"a": 1},
        ],
        ids=lambda ramp: repr(ramp)[:24],
    )
    def test_malformed_is_refused_naming_file_key_value_and_way_out(self, ramp):
        with pytest.raises(ScheduleError) as error:
            schedule(codec_chunk_ramp=ramp)
        message = str(error.value)
        assert message.startswith("voices/test.yaml: codec_chunk_ramp = ")
        assert repr(ramp)[:100] in message
        assert "null for no ramp" in message or "shorten it" in message
        assert len(message) < 600, "a huge value is not repeated in full"

    def test_a_last_entry_that_is_not_the_steady_size_is_a_warning_that_names_the_cliff(self):
        (warning,) = schedule(codec_chunk_ramp=[2, 4], codec_chunk_frames=15).warnings
        assert warning.startswith("voices/test.yaml: codec_chunk_ramp = [2, 4]")
        assert "cliff from 4 to 15" in warning

    def test_a_ramp_that_shrinks_is_a_warning(self):
        (warning,) = schedule(codec_chunk_ramp=[8, 4, 15]).warnings
        assert "shrinks" in warning

    def test_a_ramp_that_repeats_a_size_is_fine(self):
        assert schedule(codec_chunk_ramp=[4, 4, 8, 16, 25], codec_chunk_frames=25).warnings == ()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"codec_chunk_frame": 15}, "codec_chunk_frame = 15: unknown key"),
        ({"codec_chunk_frames": 0}, "codec_chunk_frames = 0: must be a whole number of frames from 1"),
        ({"codec_chunk_frames": "15"}, "codec_chunk_frames = '15'"),
        ({"codec_chunk_frames": True}, "codec_chunk_frames = True"),
        ({"initial_codec_chunk_frames": -1}, "initial_codec_chunk_frames = -1"),
        ({"initial_codec_chunk_frames": 16}, "initial_codec_chunk_frames = 16: .* from 0 to 15"),
        ({"initial_codec_chunk_dynamic": 1}, "initial_codec_chunk_dynamic = 1: must be true or false"),
        (
            {"initial_codec_chunk_dynamic": True, "codec_chunk_frames": 2},
            "initial_codec_chunk_dynamic = True: .* at least 3, it is 2",
        ),
        ({"codec_left_context_frames": 1.5}, r"codec_left_context_frames = 1\.5"),
        ({"codec_chunk_adaptive": "yes"}, "codec_chunk_adaptive = 'yes': must be true or false"),
        ({"codec_chunk_min_frames": 0}, "codec_chunk_min_frames = 0"),
        ({"codec_chunk_min_frames": 16}, "codec_chunk_min_frames = 16"),
        ({"codec_chunk_safety_margin_ms": -1}, "codec_chunk_safety_margin_ms = -1"),
        ({"codec_chunk_safety_margin_ms": float("nan")}, "codec_chunk_safety_margin_ms = nan"),
        ({"codec_chunk_safety_margin_ms": "50"}, "codec_chunk_safety_margin_ms = '50'"),
    ],
)
def test_bad_values_are_refused_naming_file_key_and_value(values, problem):
    with pytest.raises(ScheduleError, match=f"voices/test.yaml: {problem}"):
        schedule(**values)


def test_a_mapping_is_needed():
    with pytest.raises(ScheduleError, match=r"stream: \[15\]: must be a mapping"):
        ChunkSchedule.from_mapping([15])  # type: ignore[arg-type]


def test_a_schedule_error_is_a_value_error_and_a_schedule_cannot_be_changed():
    assert issubclass(ScheduleError, ValueError)
    with pytest.raises(AttributeError):
        schedule().steady = 3  # type: ignore[misc]


class TestRampOff:
    @pytest.mark.parametrize(("initial", "steady"), [(1, 15), (0, 15), (4, 15), (1, 25), (15, 15)])
    def test_sizes_are_those_of_the_plain_initial_then_steady_rule(self, initial, steady):
        off = schedule(initial_codec_chunk_frames=initial, codec_chunk_frames=steady, codec_chunk_ramp=None)
        for total in range(1, 501):
            assert new_sizes(play(off.policy(frame_seconds=FRAME), total)) == _plain(initial, steady, total)


def _plain(initial: int, steady: int, total: int) -> list[int]:
    sizes = []
    while total:
        size = initial if initial and not sizes else steady
        sizes.append(min(size, total))
        total -= sizes[-1]
    return sizes


class TestFrameSizes:
    def test_ramp_off_warms_initial_and_steady_14_graphs(self):
        sizes = schedule(initial_codec_chunk_frames=1, codec_chunk_frames=15).frame_sizes("state")
        assert sizes == (1, 15)
        assert len(sizes) * len(BATCH_BUCKETS) == 14

    def test_the_published_ramp_warms_five_sizes_35_graphs(self):
        sizes = schedule(initial_codec_chunk_frames=1, codec_chunk_ramp="2,4,8,15").frame_sizes("state")
        assert sizes == (1, 2, 4, 8, 15)
        assert len(sizes) * len(BATCH_BUCKETS) == 35

    def test_the_defaults_of_both_sides_agree(self):
        """A peer's codec took 0 where its processor took 15, and left the steady graph cold."""
        assert 15 in schedule(codec_chunk_ramp=[2, 4, 8]).frame_sizes("state")

    def test_windows_of_a_ramp(self):
        ramp = schedule(codec_chunk_ramp=[4, 8, 16], codec_chunk_frames=25, codec_left_context_frames=25)
        assert ramp.frame_sizes("window") == (4, 12, 28, 50)

    def test_windows_while_a_long_context_fills(self):
        plain = schedule(codec_chunk_frames=4, codec_left_context_frames=10, initial_codec_chunk_frames=1)
        assert plain.frame_sizes("window") == (1, 5, 9, 13, 14)

    def test_windows_without_context_are_the_chunks(self):
        plain = schedule(initial_codec_chunk_frames=1)
        assert plain.frame_sizes("window") == plain.frame_sizes("state") == (1, 15)

    def test_a_rerun_codec_has_no_fixed_sizes(self):
        with pytest.raises(ScheduleError, match="rerun"):
            schedule().frame_sizes("rerun")  # type: ignore[arg-type]

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_no_window_before_the_last_is_outside(self, data):
        values = data.draw(
            st.fixed_dictionaries(
                {
                    "codec_chunk_frames": st.integers(3, 16),
                    "codec_left_context_frames": st.integers(0, 12),
                    "codec_chunk_ramp": st.none() | st.lists(st.integers(1, 16), min_size=2, max_size=5),
                    "initial_codec_chunk_frames": st.integers(0, 3),
                    "initial_codec_chunk_dynamic": st.booleans(),
                    "codec_chunk_adaptive": st.booleans(),
                    "codec_chunk_min_frames": st.integers(1, 3),
                }
            )
        )
        made = schedule(**values)
        steps = data.draw(st.lists(st.floats(0, 0.5), min_size=1, max_size=10))
        for windowed, mode in ((True, "window"), (False, "state")):
            now = [0.0]
            policy = made.policy(
                clock=lambda now=now: now[0],
                frame_seconds=FRAME,
                load=data.draw(st.floats(0, 1)),
                windowed=windowed,
            )
            chunks = []
            buffer: StreamBuffer[int] = StreamBuffer(policy)
            for item in range(80):
                now[0] += steps[item % len(steps)]
                policy.observe_frame(now[0])
                buffer.put(item)
                while buffer.has_chunk_ready():
                    chunks.append(buffer.pop_chunk())
            assert {chunk.num_items for chunk in chunks} <= set(made.frame_sizes(mode))
            assert {chunk.num_new for chunk in chunks} <= set(made.ladder)


class TestRequests:
    VOICE: ClassVar = {"codec_chunk_ramp": [2, 4, 8, 15], "initial_codec_chunk_frames": 1}

    def sizes(self, overrides, total=60, **voice) -> list[int]:
        made = schedule(**(voice or self.VOICE)).for_request(overrides)
        return new_sizes(play(made.policy(frame_seconds=FRAME), total))

    def test_no_override_is_the_same_schedule(self):
        voice = schedule(**self.VOICE)
        assert voice.for_request({}) is voice

    def test_another_ramp_from_the_same_ladder(self):
        assert self.sizes({"codec_chunk_ramp": "1,1,4,15"}) == [1, 1, 4, 15, 15, 15, 9]

    @pytest.mark.parametrize("off", [None, "off"])
    def test_no_ramp(self, off):
        assert self.sizes({"codec_chunk_ramp": off}) == [1, 15, 15, 15, 14]

    def test_a_first_chunk_of_its_own_keeps_the_rest_of_the_ramp(self):
        assert self.sizes({"initial_codec_chunk_frames": 8}) == [8, 4, 8, 15, 15, 10]

    def test_smaller_steady_chunks_cut_the_ramp(self):
        assert self.sizes({"codec_chunk_frames": 4}, total=20) == [2, 4, 4, 4, 4, 2]

    def test_adaptive_on_the_voice_s_ladder(self):
        made = schedule(**self.VOICE).for_request({"codec_chunk_adaptive": True})
        assert isinstance(made.policy(frame_seconds=FRAME), AdaptiveChunkPolicy)
        assert made.ladder == (1, 2, 4, 8, 15)

    def test_a_request_with_a_ramp_switches_the_voice_s_controller_off(self):
        made = schedule(codec_chunk_adaptive=True).for_request({"codec_chunk_ramp": "1,2,15"})
        assert not made.adaptive
        assert made.ramp == (1, 2, 15)

    def test_the_ladder_stays_the_voice_s(self):
        voice = schedule(**self.VOICE)
        assert voice.for_request({"codec_chunk_frames": 4}).ladder == voice.ladder

    @pytest.mark.parametrize(
        ("overrides", "problem"),
        [
            (
                {"codec_chunk_ramp": "2,3,15"},
                "3 is not a size this voice is warmed for; choose among 1, 2, 4, 8, 15",
            ),
            ({"codec_chunk_frames": 16}, "16 is not a size"),
            ({"codec_chunk_frames": 0}, "0 is not a size"),
            ({"initial_codec_chunk_frames": 3}, "3 is not a size .* 0, 1, 2, 4, 8, 15"),
            ({"initial_codec_chunk_frames": "2"}, "'2' is not a size"),
            ({"initial_codec_chunk_frames": 8, "codec_chunk_frames": 4}, "at most codec_chunk_frames = 4"),
            ({"codec_chunk_ramp": "2"}, "fewer than two"),
            ({"codec_chunk_adaptive": "yes"}, "must be true or false"),
            ({"codec_left_context_frames": 4}, "unknown key"),
            ({"codec_chunk_min_frames": 1}, "unknown key"),
        ],
    )
    def test_never_off_the_ladder(self, overrides, problem):
        with pytest.raises(ScheduleError, match=f"request: .*{problem}"):
            schedule(**self.VOICE).for_request(overrides)

    def test_a_windowed_codec_also_refuses_windows_that_are_not_warmed(self):
        voice = schedule(codec_chunk_ramp=[4, 8], codec_chunk_frames=8, codec_left_context_frames=6)
        assert voice.frame_sizes("window") == (4, 12, 14)
        voice.for_request({"codec_chunk_ramp": "4,8"}, mode="window")
        with pytest.raises(ScheduleError, match=r"windows of \[8\] frames"):
            voice.for_request({"codec_chunk_ramp": "4,4"}, mode="window")


class TestDynamicInitialChunk:
    @pytest.mark.parametrize(
        ("steady", "sizes"),
        [(2, ()), (3, (2,)), (4, (2,)), (5, (2, 4)), (15, (2, 4, 8)), (16, (2, 4, 8)), (25, (2, 4, 8, 16))],
    )
    def test_steps_are_powers_of_two_from_2_to_the_largest_below_steady(self, steady, sizes):
        assert dynamic_initial_sizes(steady) == sizes

    @pytest.mark.parametrize(
        ("load", "size"),
        [(0.0, 2), (0.2, 2), (0.25, 4), (0.5, 8), (0.74, 8), (0.75, 16), (1.0, 16), (3.0, 16), (-1.0, 2)],
    )
    def test_the_busier_the_server_the_larger_the_first_chunk(self, load, size):
        assert dynamic_initial_size(load, 25) == size

    def test_it_needs_room(self):
        with pytest.raises(ValueError, match="steady = 2"):
            dynamic_initial_size(0.5, 2)

    def test_its_sizes_are_on_the_ladder_and_used(self):
        dynamic = schedule(initial_codec_chunk_dynamic=True)
        assert dynamic.ladder == (2, 4, 8, 15)
        idle = dynamic.policy(frame_seconds=FRAME, load=1 / 8)
        full = dynamic.policy(frame_seconds=FRAME, load=1.0)
        assert new_sizes(play(idle, 20)) == [2, 15, 3]
        assert new_sizes(play(full, 20)) == [8, 12]

    def test_a_request_with_a_size_of_its_own_is_not_overruled(self):
        made = schedule(initial_codec_chunk_dynamic=True).for_request({"initial_codec_chunk_frames": 4})
        assert new_sizes(play(made.policy(frame_seconds=FRAME, load=1.0), 20)) == [4, 15, 1]

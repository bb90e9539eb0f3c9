"""Rules of the talker engine: admission, pieces of text, budgets, stalls, errors, order."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from backends.graphs import EagerCapture
from backends.noise import counter_noise, seed_key
from backends.talker import NoiseSpec, Prompt, SamplingParameters, SpeechRequest, StepOutput
from backends.talker_engine import ServerFull, SpeechStream, TalkerEngine, length_buckets
from backends.voice import EngineConfig
from tests.fakes import scripted
from tests.fakes.driving import no_progress, speak
from tests.fakes.scripted import ScriptedTalker

prompt = ScriptedTalker.prompt


def make(talker: ScriptedTalker | None = None, **config: Any) -> tuple[TalkerEngine, ScriptedTalker]:
    talker = talker or ScriptedTalker()
    sizes: dict[str, Any] = {"max_slots": 4, "queue": 2, "max_length": 256, "talker_batch_buckets": (1, 2, 4)}
    engine = TalkerEngine(talker, EngineConfig(**{**sizes, **config}), capture=EagerCapture())
    engine.warm_up(no_progress)
    talker.steps.clear()
    return engine, talker


def stream(*prompts: Prompt, more: bool = False, **request: Any) -> SpeechStream:
    return SpeechStream(SpeechRequest("", **request), deque(prompts), more_prompts=more)


def frames(engine: TalkerEngine, *streams: SpeechStream) -> list[list[int]]:
    """First codes of the frames of each stream."""
    return [s.frames[:, 0].tolist() for s in speak(engine, streams)]


# Admission.


def test_slots_then_queue_then_server_full() -> None:
    engine, _ = make(max_slots=2, queue=1)
    streams = [stream(prompt(3)) for _ in range(4)]
    for s in streams[:3]:
        engine.admit(s)
    assert (engine.active, engine.queued, engine.free_slots, engine.load) == (2, 1, 0, 1.0)
    with pytest.raises(ServerFull, match=r"2 slots and 1 places in the queue.*engine\.max_slots"):
        engine.admit(streams[3])
    assert [s.slot for s in streams] == [0, 1, None, None]


def test_a_queued_stream_starts_when_a_slot_is_free_and_the_queue_keeps_its_order() -> None:
    engine, _ = make(max_slots=1, queue=2)
    streams = [stream(prompt(2, mark)) for mark in range(3)]
    for s in streams:
        engine.admit(s)
    ended = []
    while engine.active or engine.queued:
        ended += [s for s, _, _ in engine.step().ended]
    assert ended == streams


def test_cancel_frees_the_slot_at_once() -> None:
    engine, _ = make(max_slots=1, queue=0)
    first, second = stream(prompt(1000)), stream(prompt(2))
    engine.admit(first)
    engine.step()
    engine.cancel(first)
    assert (first.finish_reason, first.slot, engine.free_slots) == ("cancelled", None, 1)
    engine.admit(second)
    assert frames(engine, second) == [[0, 1]]
    assert engine.step().streams == []


def test_cancel_of_a_queued_or_ended_stream() -> None:
    engine, _ = make(max_slots=1, queue=1)
    first, second = stream(prompt(1)), stream(prompt(1))
    engine.admit(first)
    engine.admit(second)
    engine.cancel(second)
    assert (second.finish_reason, engine.queued) == ("cancelled", 0)
    speak(engine, [first])
    engine.cancel(first)
    assert first.finish_reason == "stop"


def test_no_stream_waits_for_another_s_end() -> None:
    engine, _ = make()
    long, short = stream(prompt(200)), stream(prompt(2))
    engine.admit(long)
    for _ in range(10):
        engine.step()
    engine.admit(short)
    for _ in range(4):
        engine.step()
    assert short.finish_reason == "stop"
    assert long.frames > 10


# Ends, pieces and budgets.


@pytest.mark.parametrize("ends_with_frame", [True, False])
def test_a_stream_makes_its_frames_and_stops(ends_with_frame: bool) -> None:
    engine, _ = make(ScriptedTalker(ends_with_frame=ends_with_frame))
    s = stream(prompt(5))
    engine.admit(s)
    assert frames(engine, s) == [[0, 1, 2, 3, 4]]
    assert (s.frames, s.finish_reason, s.slot) == (5, "stop", None)


def test_zero_frames_is_a_clean_end() -> None:
    engine, _ = make(ScriptedTalker(ends_with_frame=False))
    empty, nothing = stream(prompt(0)), stream()
    engine.admit(empty)
    engine.admit(nothing)
    assert frames(engine, empty, nothing) == [[], []]
    assert (empty.finish_reason, nothing.finish_reason) == ("stop", "stop")


@pytest.mark.parametrize("ends_with_frame", [True, False])
def test_pieces_follow_each_other_in_the_same_slot(ends_with_frame: bool) -> None:
    engine, _ = make(ScriptedTalker(ends_with_frame=ends_with_frame))
    s = stream(prompt(3), prompt(2), prompt(4))
    engine.admit(s)
    slot = s.slot
    while s.finish_reason is None:
        engine.step()
        assert s.slot in (slot, None)
    assert s.frames == 9


def test_noise_goes_on_over_pieces_and_depends_on_seed_and_step_alone() -> None:
    engine, talker = make()
    engine.admit(stream(prompt(3), prompt(2), seed=77))
    while engine.active:
        engine.step()
    got = [call.noise[0] for call in talker.steps]
    keys = np.repeat(seed_key(77), 5)
    np.testing.assert_array_equal(got, counter_noise(keys, np.arange(5), 1))


def test_a_stream_waits_for_its_next_piece_and_ends_when_there_is_none() -> None:
    engine, _ = make()
    s = stream(prompt(2), more=True)
    engine.admit(s)
    engine.step()
    engine.step()
    step = engine.step()
    assert (step.idle, s.waiting_for_text, s.frames) == (True, True, 2)
    s.prompts.append(prompt(1))
    assert len(engine.step().frames) == 1
    assert not s.waiting_for_text
    assert engine.step().idle
    s.more_prompts = False
    assert engine.step().ended == [(s, "stop", None)]


def test_the_stream_s_budget_ends_it_with_length() -> None:
    engine, _ = make()
    s = stream(prompt(50), prompt(50), max_frames=7)
    engine.admit(s)
    assert frames(engine, s) == [[*range(7)]]
    assert s.finish_reason == "length"


@pytest.mark.parametrize("more", [False, True])
def test_a_budget_met_exactly_at_the_end_of_the_text_is_a_stop(more: bool) -> None:
    engine, _ = make()
    s = stream(prompt(7), max_frames=7, more=more)
    engine.admit(s)
    speak(engine, [s])
    assert s.finish_reason == ("length" if more else "stop")


def test_a_piece_over_its_budget_is_cut_the_stream_goes_on_and_says_length_at_the_end() -> None:
    engine, _ = make()
    s = stream(prompt(50, budget=4), prompt(2))
    engine.admit(s)
    assert frames(engine, s) == [[0, 1, 2, 3, 0, 1]]
    assert s.finish_reason == "length"


def test_a_piece_ends_before_the_cache_is_full() -> None:
    engine, talker = make(max_length=64, length_buckets=(16, 32))
    s = stream(prompt(500, positions=10))
    engine.admit(s)
    # Ten positions of prompt, and each step takes one.
    assert len(frames(engine, s)[0]) == 22
    assert s.finish_reason == "length"
    assert max(call.length for call in talker.steps) == 32


def test_a_talker_that_never_makes_a_frame_is_ended() -> None:
    engine, talker = make()
    s = stream(prompt(5, action=scripted.SILENT, budget=6))
    engine.admit(s)
    speak(engine, [s])
    assert s.finish_reason == "length"
    assert 6 <= len(talker.steps) <= 100


# Text that comes while speaking.


def test_a_late_text_id_stalls_its_slot_only() -> None:
    engine, talker = make(ScriptedTalker(per_frame=True))
    late, ready = stream(prompt(4, mark=1)), stream(prompt(4, mark=2))
    late.text_ids.extend([11])
    ready.text_ended = True
    engine.admit(late)
    engine.admit(ready)
    made = {1: 0, 2: 0}
    for _ in range(3):
        for frame in engine.step().frames:
            made[int(frame[1])] += 1
    assert made == {1: 1, 2: 3}
    assert late.waiting_for_text
    late.text_ids.append(12)
    late.text_ended = True
    speak(engine, [late])
    fed = [t for call in talker.steps for slot, t in zip(call.slots, call.text, strict=True) if slot == 0]
    assert fed == [11, 12, -1, -1]


def test_a_prompt_s_text_ids_come_before_appended_ones() -> None:
    engine, talker = make(ScriptedTalker(per_frame=True))
    first = prompt(4)
    first.text_ids = [1, 2]
    s = stream(first)
    s.text_ids.extend([3])
    s.text_ended = True
    engine.admit(s)
    speak(engine, [s])
    assert [call.text[0] for call in talker.steps] == [1, 2, 3, -1]


# Pauses and order.


def test_a_paused_stream_keeps_its_slot_and_goes_on_where_it_was() -> None:
    engine, _ = make()
    s = stream(prompt(5))
    engine.admit(s)
    got = [int(engine.step().frames[0, 0])]
    s.paused = True
    assert engine.step().idle
    assert s.slot is not None
    s.paused = False
    while s.finish_reason is None:
        got += engine.step().frames[:, 0].tolist()
    assert got == [0, 1, 2, 3, 4]


def test_the_most_urgent_streams_step_when_more_are_ready_than_a_batch_holds() -> None:
    engine, talker = make(talker_batch_buckets=(1, 2))
    streams = [stream(prompt(100)) for _ in range(4)]
    for s, deadline in zip(streams, [4.0, 1.0, 3.0, 2.0], strict=True):
        s.deadline = deadline
        engine.admit(s)
    for _ in range(12):
        engine.step()
    assert sorted(talker.steps[-1].slots) == [1, 3]
    streams[2].deadline = 0.0
    engine.step()
    assert sorted(talker.steps[-1].slots) == [1, 2]


def test_equal_deadlines_take_turns() -> None:
    engine, _ = make(talker_batch_buckets=(1,))
    streams = [stream(prompt(100)) for _ in range(3)]
    for s in streams:
        engine.admit(s)
    for _ in range(40):
        engine.step()
    made = [s.frames for s in streams]
    assert max(made) - min(made) <= 3


# Errors.


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (scripted.RAISE_IN_STEP, "scripted step"),
        (scripted.RAISE_IN_PREFILL, "scripted prefill"),
        (scripted.FAIL, "outside their codebooks"),
        (scripted.OUT_OF_RANGE, "outside their codebooks"),
    ],
)
def test_an_error_of_one_stream_ends_that_stream_alone(action: int, message: str) -> None:
    engine, _ = make()
    good = [stream(prompt(6, mark=i)) for i in range(3)]
    bad = stream(prompt(6, action=action))
    for s in [good[0], bad, *good[1:]]:
        engine.admit(s)
    spoken = speak(engine, [*good, bad])
    assert [s.frames[:, 0].tolist() for s in spoken[:3]] == [[*range(6)]] * 3
    assert [s.reason for s in spoken] == ["stop"] * 3 + ["error"]
    assert message in str(spoken[3].error)
    assert len(spoken[3].frames) == 0
    assert engine.free_slots == 4


def test_a_step_that_fails_only_as_a_batch_hurts_nobody() -> None:
    engine, _ = make()
    streams = [stream(prompt(4, action=scripted.RAISE_IN_BATCH)) for _ in range(3)]
    for s in streams:
        engine.admit(s)
    assert frames(engine, *streams) == [[0, 1, 2, 3]] * 3
    assert engine.counters.retried_steps > 0


def test_a_prompt_longer_than_the_cache_is_refused_with_the_limit_named() -> None:
    engine, _ = make(max_length=20)
    s, other = stream(prompt(3, positions=20)), stream(prompt(2))
    engine.admit(s)
    engine.admit(other)
    spoken = speak(engine, [s, other])
    assert "takes 21 positions" in str(spoken[0].error)
    assert "20 (engine.max_length)" in str(spoken[0].error)
    assert spoken[1].reason == "stop"


def test_an_empty_prompt_is_an_error() -> None:
    engine, _ = make()
    s = stream(Prompt(torch.zeros(0, dtype=torch.int64), 5))
    engine.admit(s)
    (spoken,) = speak(engine, [s])
    assert "empty prompt" in str(spoken.error)


class LatentTalker(ScriptedTalker):
    """Float frames; a mark of 9 makes them NaN."""

    spec = scripted.FrameSpec("latent", 2, (), 16_000, 1, 160)

    def step(self, slots: Any, text: Any, noise: Any, sampling: Any, length: int) -> StepOutput:
        out = super().step(slots, text, noise, sampling, length)
        raw = torch.where(out.raw == 9, torch.nan, out.raw.float())
        return StepOutput(raw, out.flags)


def test_latents_that_are_not_finite_end_their_stream() -> None:
    engine, _ = make(LatentTalker())
    good, bad = stream(prompt(3)), stream(prompt(3, mark=9))
    engine.admit(good)
    engine.admit(bad)
    spoken = speak(engine, [good, bad])
    assert spoken[0].frames.dtype == np.float32
    assert spoken[0].frames[:, 0].tolist() == [0, 1, 2]
    assert "not finite" in str(spoken[1].error)


def test_an_assembler_that_raises_ends_its_stream() -> None:
    class Broken:
        def push(self, raw: torch.Tensor) -> torch.Tensor:
            if raw[1] == 9:
                raise RuntimeError("broken assembler")
            return raw[None]

        def flush(self) -> torch.Tensor:
            return torch.tensor([[99, 0]])

    class Talker(ScriptedTalker):
        spec = scripted.FrameSpec("codes", 2, (1000, 1000), 16_000, 1, 160, delay=(0, 1))

        def assembler(self) -> Any:
            return Broken()

    engine, _ = make(Talker())
    good, bad = stream(prompt(3)), stream(prompt(3, mark=9))
    engine.admit(good)
    engine.admit(bad)
    spoken = speak(engine, [good, bad])
    assert spoken[0].frames[:, 0].tolist() == [0, 1, 2, 99]
    assert "broken assembler" in str(spoken[1].error)


# Prefill.


def test_a_long_prompt_is_cut_and_running_streams_step_in_between() -> None:
    engine, talker = make(ScriptedTalker(prefill_chunk=64))
    running = stream(prompt(200))
    engine.admit(running)
    engine.step()
    engine.step()
    late = stream(prompt(3, positions=150))
    engine.admit(late)
    before = running.frames
    while late.frames == 0:
        engine.step()
    runs = [c for c in talker.prefills if late.slot in c.slots]
    assert len(runs) > 2
    assert all(c.length <= 64 for c in runs)
    assert runs[0].begins == [0]
    # One step for each run, and one run for each step.
    assert running.frames - before == len(runs)


def test_prompts_are_prefilled_together_when_nobody_waits() -> None:
    engine, talker = make(ScriptedTalker(prefill_chunk=64))
    for _ in range(3):
        engine.admit(stream(prompt(3, positions=12)))
    engine.step()
    assert [(c.slots, c.length) for c in talker.prefills] == [([0, 1, 2], 16)]


def test_a_prompt_that_cannot_be_cut_is_taken_whole() -> None:
    engine, talker = make(ScriptedTalker(prefill_chunk=None))
    running = stream(prompt(50))
    engine.admit(running)
    engine.step()
    engine.admit(stream(prompt(3, positions=100)))
    engine.step()
    assert talker.prefills[-1].length == 128


def test_one_prefill_run_a_step_at_most() -> None:
    engine, talker = make(max_slots=4)
    engine.admit(stream(prompt(100)))
    engine.step()
    engine.step()
    for _ in range(3):
        engine.admit(stream(prompt(3, positions=14)))
    for _ in range(3):
        before = len(talker.prefills)
        engine.step()
        assert len(talker.prefills) - before <= 1


# What a step is given.


def test_sampling_parameters_go_to_the_stream_s_row_and_leave_with_it() -> None:
    engine, talker = make(max_slots=1)
    sampling = SamplingParameters(temperature=0.25, top_k=7, top_p=0.5, extra={"speed": 0.75})
    for s in (stream(prompt(1), sampling=sampling), stream(prompt(1))):
        engine.admit(s)
        speak(engine, [s])
    assert [c.temperature for c in talker.steps] == [[0.25], [1.0]]
    assert [c.speed for c in talker.steps] == [[0.75], [1.5]]


def test_rows_are_padded_with_the_null_slot_and_attention_reads_a_length_bucket() -> None:
    engine, talker = make(length_buckets=(8, 16, 256))
    for _ in range(3):
        engine.admit(stream(prompt(30)))
    for _ in range(20):
        engine.step()
    assert engine.counters.padding_rows == engine.counters.steps
    # A prompt of three; the first step's own position is the fourth.
    assert [c.length for c in talker.steps] == [8] * 5 + [16] * 8 + [256] * 7
    assert engine.counters.misses == 0


def test_every_batch_and_length_is_captured_largest_first() -> None:
    talker = ScriptedTalker()
    config = EngineConfig(
        max_slots=3, talker_batch_buckets=(1, 2, 4, 8), max_length=100, length_buckets=(10, 100)
    )
    engine = TalkerEngine(talker, config, capture=EagerCapture())
    progress: list[tuple[int, int]] = []
    engine.warm_up(lambda done, total: progress.append((done, total)))
    assert progress == [(i, 6) for i in range(1, 7)]
    assert engine.counters.captures_warmup == 6
    assert [c.length for c in talker.steps] == [100, 100, 100, 10, 10, 10]


def test_default_length_buckets_double_up_to_the_cache() -> None:
    assert length_buckets(EngineConfig(max_length=700)) == (128, 256, 512, 700)
    assert length_buckets(EngineConfig(max_length=100)) == (100,)
    with pytest.raises(ValueError, match=r"ends at 200; the cache has engine\.max_length = 100"):
        length_buckets(EngineConfig(max_length=100, length_buckets=(200,)))


def test_a_talker_without_noise_gets_none() -> None:
    class Quiet(ScriptedTalker):
        noise = NoiseSpec(0)

    engine, talker = make(Quiet())
    engine.admit(stream(prompt(2)))
    engine.step()
    assert talker.steps[0].noise == [[]]

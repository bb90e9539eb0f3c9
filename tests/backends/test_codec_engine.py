"""Rules of the codec engine: who is decoded when, slots, errors, what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from backends.codec import Codec, DecodeOutput
from backends.codec_engine import CodecEngine, CodecJob, CodecResult, default_slots, slots_of
from backends.frames import FrameSpec
from backends.graphs import EagerCapture
from backends.voice import EngineConfig
from tests.fakes.driving import no_progress

SPF = 4
POISON, NAN = 900, 901


class CountingCodec(Codec):
    """Sample s of frame (v,) after n frames of the stream is n * SPF + s + v / 1000: place and content in
    one number.

    calls: (slots, T, lengths, final) of each decode. Raises where a row holds POISON, makes NaN of NAN.
    """

    spec = FrameSpec("codes", 1, (1000,), 16_000, 1, SPF)
    mode = "state"
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int, list[int], list[bool]]] = []
        self.opened: list[int] = []

    def allocate(self, slots: int) -> None:
        self.null = slots
        self.heard = torch.full((slots + 1,), -1)

    def slot_bytes(self) -> int:
        return 8

    def open(self, slots: torch.Tensor) -> None:
        self.opened += slots.tolist()
        self.heard[slots] = 0

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        self.calls.append((slots.tolist(), frames.shape[1], lengths.tolist(), final.tolist()))
        if (frames == POISON).any():
            raise RuntimeError("poisoned frame")
        heard = self.heard[slots]
        place = (heard[:, None] + torch.arange(frames.shape[1]))[..., None] * SPF + torch.arange(SPF)
        pcm = torch.where(frames == NAN, torch.nan, place + frames / 1000)
        self.heard[slots] = heard + lengths
        return DecodeOutput(pcm.flatten(1)[:, None].float(), heard * SPF, lengths * SPF)


def make(frame_sizes: tuple[int, ...] = (1, 2, 4), **config: Any) -> tuple[CodecEngine, CountingCodec]:
    sizes: dict[str, Any] = {"codec_batch_buckets": (1, 2, 4), "codec_slots": 4}
    codec = CountingCodec()
    engine = CodecEngine(codec, EngineConfig(**{**sizes, **config}), frame_sizes, capture=EagerCapture())
    engine.warm_up(no_progress)
    codec.calls.clear()
    return engine, codec


def job(key: Any, values: list[int], start: int = 0, **more: Any) -> CodecJob:
    facts: dict[str, Any] = {"index": 0, "context": 0, "final": False, "deadline": 0.0, **more}
    return CodecJob(key=key, frames=np.array(values, np.int32).reshape(-1, 1), start_offset=start, **facts)


def drain(engine: CodecEngine) -> list[CodecResult]:
    results = []
    while batch := engine.form_batch():
        results += engine.decode(batch)
    return results


def expected(begin: int, values: list[int]) -> np.ndarray:
    return np.array(
        [(begin + i) * SPF + s + v / 1000 for i, v in enumerate(values) for s in range(SPF)], np.float32
    )[None]


# Batches.


def test_rows_of_one_size_share_a_call() -> None:
    engine, codec = make()
    for key in "abc":
        engine.submit(job(key, [1, 2]))
    engine.submit(job("d", [1]))
    results = drain(engine)
    assert [sorted(c[0]) for c in codec.calls] == [[0, 1, 2, codec.null], [3]]
    assert [r.job.key for r in results] == ["a", "b", "c", "d"]
    for result in results:
        np.testing.assert_allclose(result.samples, expected(0, result.job.frames[:, 0].tolist()))


def test_one_chunk_of_a_stream_a_batch_in_its_order() -> None:
    engine, _codec = make()
    engine.submit(job("a", [1, 2], deadline=9.0))
    engine.submit(job("a", [3, 4], start=2, deadline=1.0))
    engine.submit(job("b", [5, 6], deadline=5.0))
    first = engine.form_batch()
    assert [j.key for j in first] == ["b", "a"]
    engine.decode(first)
    (second,) = engine.decode(engine.form_batch())
    assert second.first_sample == 2 * SPF
    np.testing.assert_allclose(second.samples, expected(2, [3, 4]))


def test_a_stream_in_a_batch_is_not_in_the_next_before_it_is_decoded() -> None:
    engine, _ = make()
    engine.submit(job("a", [1]))
    engine.submit(job("a", [2], start=1))
    batch = engine.form_batch()
    assert engine.form_batch() == []
    engine.decode(batch)
    assert len(engine.form_batch()) == 1


def test_the_most_urgent_chunk_chooses_the_size_and_others_of_it_fill_up_by_deadline() -> None:
    engine, _ = make(codec_batch_buckets=(1, 2))
    for key, count, deadline in [("a", 2, 3.0), ("b", 1, 1.0), ("c", 2, 0.5), ("d", 2, 2.0)]:
        engine.submit(job(key, [1] * count, deadline=deadline))
    order = []
    while batch := engine.form_batch():
        order.append([j.key for j in batch])
        engine.decode(batch)
    assert order == [["c", "d"], ["b"], ["a"]]


@pytest.mark.parametrize(("behind", "first"), [(0.03, "full"), (0.05, "urgent")])
def test_a_fuller_batch_goes_first_if_it_is_nearly_as_urgent(behind: float, first: str) -> None:
    engine, _ = make()
    engine.submit(job("urgent", [1], deadline=7.0))
    for key in ("full 1", "full 2"):
        engine.submit(job(key, [1, 2], deadline=7.0 + behind))
    assert engine.form_batch()[0].key.startswith(first)


def test_batches_are_padded_to_buckets_with_the_null_slot() -> None:
    engine, codec = make()
    for key in "abc":
        engine.submit(job(key, [1]))
    drain(engine)
    assert codec.calls[0][0] == [0, 1, 2, codec.null]
    assert (engine.counters.rows, engine.counters.padding_rows, engine.counters.batches) == (3, 1, 1)


def test_nothing_to_do_is_an_empty_batch() -> None:
    engine, _ = make()
    assert engine.form_batch() == []
    assert engine.decode([]) == []


# Sizes.


def test_the_last_chunk_is_padded_and_its_audio_trimmed() -> None:
    engine, codec = make()
    engine.submit(job("a", [1, 2, 3], final=True))
    (result,) = drain(engine)
    assert codec.calls == [([0], 4, [3], [True])]
    np.testing.assert_allclose(result.samples, expected(0, [1, 2, 3]))
    assert (engine.counters.padding_frames, engine.counters.misses) == (1, 0)


def test_a_chunk_off_the_ladder_in_mid_stream_runs_eagerly_and_is_counted() -> None:
    engine, codec = make()
    engine.submit(job("a", [1, 2, 3]))
    engine.submit(job("a", [4, 5], start=3, final=True))
    results = drain(engine)
    assert [c[1] for c in codec.calls] == [3, 2]
    np.testing.assert_allclose(results[1].samples, expected(3, [4, 5]))
    assert engine.counters.misses == 1


def test_every_key_is_captured_at_warm_up() -> None:
    engine, _ = make((1, 2, 4, 8, 15), codec_slots=80, codec_batch_buckets=(1, 2, 4, 8, 16, 32, 64))
    assert engine.counters.captures_warmup == 35
    engine, _ = make((1, 15), codec_slots=80, codec_batch_buckets=(1, 2, 4, 8, 16, 32, 64))
    assert engine.counters.captures_warmup == 14


def test_an_empty_last_chunk_ends_the_stream_without_a_call() -> None:
    engine, codec = make()
    engine.submit(job("a", [1]))
    engine.submit(job("a", [], start=1, final=True))
    results = drain(engine)
    assert len(codec.calls) == 1
    assert (results[1].samples.shape, results[1].first_sample) == ((1, 0), SPF)
    assert engine.pending == 0


def test_a_stream_without_any_frame_is_a_clean_end() -> None:
    engine, codec = make()
    engine.submit(job("a", [], final=True))
    (result,) = drain(engine)
    assert (result.error, result.samples.shape, codec.calls) == (None, (1, 0), [])


# Priming and long chunks.


def test_a_prefix_is_heard_before_the_first_chunk_and_not_sent() -> None:
    engine, codec = make()
    prefix = [50, 51, 52, 53, 54, 55, 56]
    engine.submit(job("a", [*prefix, 1, 2], context=7))
    engine.submit(job("a", [3], start=2, final=True))
    results = drain(engine)
    assert [c[1] for c in codec.calls] == [4, 2, 1, 2, 1]
    assert [r.first_sample for r in results] == [0, 2 * SPF]
    np.testing.assert_allclose(results[0].samples, expected(7, [1, 2]))
    assert engine.counters.misses == 0


def test_a_job_of_many_calls_shares_batches_with_others_and_gives_one_result() -> None:
    engine, codec = make()
    engine.submit(job("long", [*range(11)], final=True))
    engine.submit(job("short", [7, 7, 7, 7], deadline=1.0))
    batch = engine.form_batch()
    assert [j.key for j in batch] == ["long", "short"]
    assert [r.job.key for r in engine.decode(batch)] == ["short"]
    (result,) = drain(engine)
    np.testing.assert_allclose(result.samples, expected(0, [*range(11)]))
    assert [c[1:] for c in codec.calls] == [
        (4, [4, 4], [False, False]),
        (4, [4], [False]),
        (4, [3], [True]),
    ]


def test_context_that_was_delivered_already_is_not_heard_twice() -> None:
    engine, _ = make()
    engine.submit(job("a", [1, 2]))
    engine.submit(job("a", [1, 2, 3, 4], context=2, start=2))
    results = drain(engine)
    np.testing.assert_allclose(results[1].samples, expected(2, [3, 4]))


# Slots.


def test_a_stream_waits_for_a_slot_and_others_go_on() -> None:
    engine, _ = make(codec_slots=2)
    engine.submit(job("a", [1]))
    engine.submit(job("b", [1]))
    engine.submit(job("c", [1], deadline=-5.0))
    batch = engine.form_batch()
    assert [j.key for j in batch] == ["c", "a"]
    engine.decode(batch)
    assert engine.form_batch() == []
    assert engine.pending == 0  # b cannot be decoded now
    engine.submit(job("a", [2], start=1, final=True))
    assert [r.job.key for r in drain(engine)] == ["a", "b"]


def test_a_slot_is_opened_anew_for_each_stream() -> None:
    engine, codec = make(codec_slots=1)
    for key in "abc":
        engine.submit(job(key, [1, 2], final=True))
    results = drain(engine)
    assert codec.opened == [0, 0, 0]
    for result in results:
        np.testing.assert_allclose(result.samples, expected(0, [1, 2]))


def test_close_forgets_a_stream_wherever_it_is() -> None:
    engine, codec = make(codec_slots=1)
    engine.submit(job("running", [1]))
    drain(engine)
    engine.submit(job("running", [2], start=1))
    engine.submit(job("waiting", [1]))
    engine.close("running")
    assert engine.pending == 1
    engine.close("never seen")
    assert [r.job.key for r in drain(engine)] == ["waiting"]
    batch_codec_calls = len(codec.calls)
    engine.submit(job("in batch", [1]))
    engine.close("waiting")
    batch = engine.form_batch()
    engine.close("in batch")
    assert engine.decode(batch) == []
    assert len(codec.calls) == batch_codec_calls
    assert engine.pending == 0


def test_more_codec_slots_than_talker_slots_by_default() -> None:
    assert default_slots(4) == 8
    assert default_slots(64) == 80
    _engine, codec = make(codec_slots=0, max_slots=16)
    assert codec.null == 20


def test_the_slot_pool_is_cut_to_the_memory_it_may_take() -> None:
    class Large(CountingCodec):
        def slot_bytes(self) -> int:
            return 3 * 2**20

    def slots(**config: Any) -> int:
        return slots_of(Large(), EngineConfig(max_slots=16, **config))

    assert slots() == 20
    assert slots(codec_memory_mb=10) == 3
    assert slots(codec_memory_mb=10, codec_slots=2) == 2
    assert slots(codec_memory_mb=1000) == 20
    with pytest.raises(ValueError, match=r"codec_memory_mb is 2; one stream's decoder state takes 3\.0 MiB"):
        slots(codec_memory_mb=2)


# Errors.


def errors(results: list[CodecResult]) -> dict[Any, str]:
    return {r.job.key: str(r.error) for r in results if r.error is not None}


@pytest.mark.parametrize(("value", "message"), [(POISON, "poisoned frame"), (NAN, "not finite")])
def test_an_error_of_one_row_is_its_own(value: int, message: str) -> None:
    engine, _codec = make()
    for key in "abc":
        engine.submit(job(key, [1, value if key == "b" else 2]))
        engine.submit(job(key, [3], start=2, final=True))
    results = drain(engine)
    assert set(errors(results)) == {"b"}
    assert message in errors(results)["b"]
    for key in "ac":
        first, second = (r for r in results if r.job.key == key)
        np.testing.assert_allclose(first.samples, expected(0, [1, 2]))
        np.testing.assert_allclose(second.samples, expected(2, [3]))
    # The failed stream has lost its slot, and all its chunks tell why.
    assert len([r for r in results if r.job.key == "b"]) == 2
    assert len(engine._free) == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (job("a", [1], start=7), "a chunk starts at frame 7 where 0 is next"),
        (job("a", [1, 1000]), "frame 1, column 0 holds 1000; codes are below 1000"),
        (job("a", [-1]), "frame 0, column 0 holds -1"),
        (job("a", [1], context=2), "context is 2 of 1 frames"),
        (
            CodecJob("a", 0, np.zeros((2, 3), np.int32), 0, 0, False, 0.0),
            r"shape (2, 3); they must be [n, 1]",
        ),
    ],
)
def test_bad_chunks_are_refused_with_what_is_wrong(bad: CodecJob, message: str) -> None:
    engine, codec = make()
    engine.submit(bad)
    engine.submit(job("good", [1]))
    results = drain(engine)
    assert message in errors(results)["a"]
    assert len(codec.calls) == 1


def test_after_close_a_failed_stream_s_key_may_be_used_again() -> None:
    engine, _ = make()
    engine.submit(job("a", [POISON]))
    drain(engine)
    engine.close("a")
    engine.submit(job("a", [1]))
    assert errors(drain(engine)) == {}

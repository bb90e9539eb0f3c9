"""The decoder over slots: any cut of the frames gives the audio of one decode, whatever else runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.codec_engine import CodecEngine, CodecJob
from backends.voice import EngineConfig
from chunk_policies import ChunkSchedule
from tests.fakes.strict import StrictCapture
from tests.qwen3_tts.golden import cases
from tests.qwen3_tts.model import codec

FRAMES = torch.from_numpy(cases.codec_frames())
SPF = 1920


@pytest.fixture(scope="module")
def exact(checkpoint):
    """In float64, so that a wrong sample is not lost in rounding."""
    model = codec(checkpoint("1.7b base"))
    model.decoder.double()
    for module in model.decoder.modules():
        if hasattr(module, "freeze"):
            module.freeze()
    model.allocate(4)
    return model


@pytest.fixture(scope="module")
def whole(exact):
    with torch.inference_mode():
        return exact.decoder(FRAMES)[:, 0].float()


def call(model, slots, frames, lengths=None, final=False):
    batch, count, _ = frames.shape
    lengths = torch.full((batch,), count) if lengths is None else torch.tensor(lengths)
    return model.decode(torch.tensor(slots), frames, lengths, torch.full((batch,), final))


def stream(model, slot, frames, cuts):
    parts, begin, turn = [], 0, 0
    while begin < frames.shape[0]:
        part = frames[begin : begin + cuts[turn % len(cuts)]]
        out = call(model, [slot], part[None])
        assert out.first.item() == begin * SPF
        assert out.count.item() == len(part) * SPF
        parts.append(out.pcm[0, 0])
        begin, turn = begin + len(part), turn + 1
    return torch.cat(parts)


@given(cuts=st.lists(st.integers(1, 15), min_size=1, max_size=5), slot=st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_any_cut_on_any_used_slot(exact, whole, cuts, slot):
    exact.open(torch.tensor([slot]))
    torch.testing.assert_close(stream(exact, slot, FRAMES[0], cuts), whole[0], atol=1e-6, rtol=0)


def test_rows_that_started_at_different_times_share_calls(exact, whole):
    exact.open(torch.tensor([0, 1, 2]))
    begins = {0: 0, 2: 0}
    parts = {0: [], 2: []}
    while begins[0] < 40 or begins[2] < 30:
        rows = [s for s in (0, 2) if begins[s] < 40 and (s == 0 or begins[0] >= 10)]
        frames = torch.stack([FRAMES[s // 2, begins[s] : begins[s] + 5] for s in rows])
        out = call(exact, [*rows, 4], torch.cat([frames, torch.zeros_like(frames[:1])]))
        for row, s in enumerate(rows):
            parts[s].append(out.pcm[row, 0])
            begins[s] += 5
    torch.testing.assert_close(torch.cat(parts[0]), whole[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.cat(parts[2]), whole[1, : begins[2] * SPF], atol=1e-6, rtol=0)


def test_a_last_chunk_may_be_padded_on_the_right(exact, whole):
    exact.open(torch.tensor([1]))
    start = call(exact, [1], FRAMES[:1, :20]).pcm[0, 0]
    padded = torch.cat([FRAMES[:1, 20:27], torch.zeros(1, 8, 16, dtype=torch.int64)], dim=1)
    out = call(exact, [1], padded, lengths=[7], final=True)
    heard = torch.cat([start, out.pcm[0, 0, : out.count.item()]])
    torch.testing.assert_close(heard, whole[0, : 27 * SPF], atol=1e-6, rtol=0)


def test_windows_would_not_do(exact, whole):
    """The reason for slot state: 10 frames of context are not enough for two layers of window 8."""
    with torch.inference_mode():
        window = exact.decoder(FRAMES[:1, 20:40])[0, 0, 10 * SPF :].float()
    assert (window - whole[0, 30 * SPF :]).abs().max() > 1e-5


def test_through_the_engine_with_a_ramp_and_a_primed_voice(checkpoint):
    """The prefix is decoded and not heard; strict graphs, nothing captured after warm-up."""
    model = codec(checkpoint("1.7b base"))
    with torch.inference_mode():
        expected = model.decoder(FRAMES[:1])[0, 0]
    schedule = ChunkSchedule.from_mapping(
        {"codec_chunk_ramp": [2, 4, 8], "initial_codec_chunk_frames": 1, "codec_chunk_frames": 8}
    )
    config = EngineConfig(max_slots=2, codec_batch_buckets=(1, 2))
    engine = CodecEngine(model, config, schedule.frame_sizes("state"), capture=StrictCapture())
    engine.warm_up(lambda done, total: None)
    prefix, begin, audio = 11, 0, []
    for index, size in enumerate((1, 2, 4, 8, 8, 6)):
        frames = FRAMES[0, prefix + begin : prefix + begin + size].numpy()
        context = prefix if index == 0 else 0
        if context:
            frames = torch.cat([FRAMES[0, :prefix], torch.from_numpy(frames)]).numpy()
        engine.submit(
            CodecJob(
                key="a",
                index=index,
                frames=frames.astype("int32"),
                context=context,
                start_offset=begin,
                final=index == 5,
                deadline=0.0,
            )
        )
        begin += size
        while batch := engine.form_batch():
            for result in engine.decode(batch):
                assert result.error is None
                audio.append(torch.from_numpy(result.samples[0]))
    torch.testing.assert_close(torch.cat(audio), expected[prefix * SPF :], atol=1e-5, rtol=0)
    assert engine.counters.misses == engine.counters.captures_runtime == engine.counters.fallbacks == 0


def test_bytes_of_a_slot(exact):
    layers, window, heads, size, double = 2, 8, 4, 8, 8
    assert exact.slot_bytes() > 2 * layers * window * heads * size * double

"""The codec: one continuous stream of audio, whatever the cuts, the slot and the company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.families.wren.codec import WrenCodec
from backends.families.wren.geometry import CODEBOOK_SIZE, CODEBOOKS, SAMPLES_PER_FRAME
from tests.wren.driving import decode

FRAMES = 24


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, CODEBOOK_SIZE, (*shape, CODEBOOKS), generator=generator)


@pytest.mark.parametrize("index", [0, 1])
def test_audio_is_that_of_the_prototype(
    codec: WrenCodec, reference: dict[str, np.ndarray], index: int
) -> None:
    expected = torch.from_numpy(reference[f"audio_{index}"])
    frames = len(expected) // SAMPLES_PER_FRAME
    codes = torch.from_numpy(reference[f"codes_{index}"][:frames].astype(np.int64))
    torch.testing.assert_close(decode(codec, 0, codes), expected, atol=1e-5, rtol=0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, FRAMES - 1)), slot=st.integers(0, 19), seed=st.integers(0, 3))
def test_chunks_join_to_the_whole_utterance(codec: WrenCodec, cuts: set[int], slot: int, seed: int) -> None:
    codes = random_codes(FRAMES, seed=seed)
    whole = decode(codec, 0, codes)
    chunked = decode(codec, slot, codes, sorted(cuts))
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=0)


def test_long_streams_do_not_drift(codec: WrenCodec) -> None:
    codes = random_codes(400)
    whole = decode(codec, 0, codes)
    chunked = decode(codec, 1, codes, range(7, 400, 7))
    torch.testing.assert_close(
        chunked[-10 * SAMPLES_PER_FRAME :], whole[-10 * SAMPLES_PER_FRAME :], atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_a_stream_sounds_the_same_in_any_company(codec: WrenCodec, batch: int) -> None:
    codes = random_codes(batch, 9, seed=batch)
    alone = torch.stack([decode(codec, 19, row) for row in codes])
    slots = torch.randperm(20, generator=torch.Generator().manual_seed(batch))[:batch]
    codec.open(slots)
    parts = []
    for begin, end in ((0, 1), (1, 3), (3, 4), (4, 9)):
        lengths = torch.full((batch,), end - begin)
        parts.append(codec.decode(slots, codes[:, begin:end], lengths, lengths < 0).pcm[:, 0])
    torch.testing.assert_close(torch.cat(parts, 1), alone, atol=1e-5, rtol=0)


def test_streams_come_and_go_around_a_stream(codec: WrenCodec) -> None:
    codes, others = random_codes(12, seed=1), random_codes(12, 3, seed=2)
    alone = decode(codec, 4, codes)
    codec.open(torch.tensor([7]))
    heard = []
    for frame in range(12):
        company = [5] * (frame % 3 == 0) + [6] * (frame % 4 != 1)
        slots = torch.tensor([*company, 7])
        codec.open(slots[:-1])
        batch = torch.stack([*others[frame, : len(company)], codes[frame]])[:, None]
        lengths = torch.ones(len(slots), dtype=torch.int64)
        heard.append(codec.decode(slots, batch, lengths, lengths < 0).pcm[-1, 0])
    torch.testing.assert_close(torch.cat(heard), alone, atol=1e-5, rtol=0)


def test_a_short_last_chunk_is_padded_and_trimmed(codec: WrenCodec) -> None:
    codes = random_codes(2, 8)
    expected = decode(codec, 0, codes[0, :5])
    slots = torch.tensor([1, 2])
    codec.open(slots)
    out = codec.decode(slots, codes, torch.tensor([5, 8]), torch.tensor([True, False]))
    assert out.count.tolist() == [5 * SAMPLES_PER_FRAME, 8 * SAMPLES_PER_FRAME]
    torch.testing.assert_close(out.pcm[0, 0, : out.count[0]], expected, atol=1e-5, rtol=0)


def test_positions_count_from_the_opening(codec: WrenCodec) -> None:
    slots = torch.tensor([3, 8])
    lengths = torch.tensor([2, 2])
    codec.open(slots)
    for call in range(3):
        out = codec.decode(slots, random_codes(2, 2), lengths, lengths < 0)
        assert out.first.tolist() == [call * 2 * SAMPLES_PER_FRAME] * 2
    codec.open(slots[:1])
    out = codec.decode(slots, random_codes(2, 2), lengths, lengths < 0)
    assert out.first.tolist() == [0, 6 * SAMPLES_PER_FRAME]


def test_a_reopened_slot_remembers_nothing(codec: WrenCodec) -> None:
    codes = random_codes(6)
    fresh = decode(codec, 2, codes)
    decode(codec, 2, random_codes(6, seed=9))
    assert torch.equal(decode(codec, 2, codes), fresh)


def test_the_null_slot_stays_finite(codec: WrenCodec) -> None:
    null = torch.full((4,), 20)
    lengths = torch.full((4,), 2)
    for call in range(40):
        out = codec.decode(null, random_codes(4, 2, seed=call), lengths, lengths < 0)
        assert torch.isfinite(out.pcm).all()
        assert out.pcm.abs().max() <= 1
    assert torch.isfinite(codec.history).all()


def test_state_of_a_slot_is_as_stated(codec: WrenCodec) -> None:
    held = codec.history.nbytes + codec.clock.nbytes
    assert codec.slot_bytes() * 21 == held

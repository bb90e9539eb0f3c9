"""Damage of every kind that chunked streaming can do is found; undamaged audio passes."""

import numpy as np
import pytest

from bench.audio_faults import channel_correlation, constant_runs, examine, repeats

RATE = 16_000
FRAME = 1280  # 80 ms


def speech(seconds: float, seed: int = 0) -> np.ndarray:
    """A stand-in for speech: voiced stretches with a gliding pitch, noise, and pauses of faint noise."""
    source = np.random.default_rng(seed)
    n = int(seconds * RATE)
    time = np.arange(n) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voiced = sum(np.sin(k * phase) / k for k in range(1, 8))
    noise = source.standard_normal(n)
    envelope = np.clip(np.sin(2 * np.pi * 1.1 * time) + 0.3, 0.0, 1.0)
    hiss = np.clip(np.sin(2 * np.pi * 1.1 * time + 2.5) - 0.5, 0.0, 1.0)
    return (0.2 * envelope * voiced + 0.05 * hiss * noise + 1e-4 * noise).astype(np.float32)


def chunks_of(frames: int) -> list[int]:
    """Boundaries of the ramp 2, 4, 8, 15, 15, ..."""
    boundaries, at = [], 0
    for size in (2, 4, 8, *[15] * 100):
        at += size
        if at >= frames:
            return [b * FRAME for b in boundaries]
        boundaries.append(at)
    return []


WHOLE = speech(5.04)
BOUNDARIES = chunks_of(63)


def kinds(samples: np.ndarray, whole: np.ndarray | None = None, expected: int = len(WHOLE)) -> set[str]:
    found = examine(samples, RATE, BOUNDARIES, expected_samples=expected, whole=whole)
    return {fault.kind for fault in found.faults}


def test_clean_audio_passes():
    assert kinds(WHOLE) == set()
    assert kinds(WHOLE, whole=WHOLE) == set()


def test_clean_audio_passes_wherever_the_boundaries_are():
    for offset in range(0, 1200, 37):
        boundaries = [b + offset for b in BOUNDARIES]
        found = examine(WHOLE, RATE, boundaries, expected_samples=len(WHOLE))
        assert found.faults == ()


def test_a_lost_frame_is_found():
    lost = np.delete(WHOLE, slice(20 * FRAME, 21 * FRAME))
    assert "length" in kinds(lost)
    assert {"length", "difference"} <= kinds(lost, whole=WHOLE)


def test_samples_lost_at_each_boundary_are_found():
    lost = np.delete(WHOLE, [b + i for b in BOUNDARIES for i in range(3)])
    assert "length" in kinds(lost)


def test_a_repeated_frame_is_found_even_where_the_length_is_right():
    repeated = np.concatenate([WHOLE[: 21 * FRAME], WHOLE[20 * FRAME :]])[: len(WHOLE)]
    assert kinds(repeated) >= {"repeat"}
    (fault,) = repeats(repeated, RATE)
    assert fault.sample == 21 * FRAME
    assert "80.0 ms" in fault.detail


def test_a_segment_that_comes_back_seconds_later_is_found():
    damaged = WHOLE.copy()
    damaged[50 * FRAME : 51 * FRAME] = damaged[10 * FRAME : 11 * FRAME]
    assert "repeat" in kinds(damaged)


def test_silence_and_other_constant_stretches_are_no_repeats():
    assert repeats(np.zeros(RATE, np.float32), RATE) == []
    assert repeats(np.full(RATE, 0.25, np.float32), RATE) == []


def test_a_gap_of_digital_silence_is_found():
    gapped = WHOLE.copy()
    gapped[BOUNDARIES[2] : BOUNDARIES[2] + int(0.012 * RATE)] = 0.0
    assert "gap" in kinds(gapped)


def test_a_gap_shorter_than_10_ms_is_no_gap():
    samples = WHOLE.copy()
    samples[1000 : 1000 + int(0.009 * RATE)] = 0.0
    assert constant_runs(samples, int(0.010 * RATE) + 1) == []


def test_silence_that_the_whole_decode_has_too_is_no_gap():
    silent = WHOLE.copy()
    silent[30_000:31_000] = 0.0
    assert kinds(silent, whole=silent) == set()
    assert "gap" in kinds(silent, whole=WHOLE)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_click_at_a_boundary_is_found(boundary):
    clicked = WHOLE.copy()
    clicked[boundary] += 0.5
    assert "click" in kinds(clicked)


def test_a_jump_of_the_waveform_at_a_boundary_is_found():
    jumped = WHOLE.copy()
    boundary = BOUNDARIES[3]
    jumped[boundary : boundary + FRAME] += 0.3
    assert "click" in kinds(jumped)


def test_a_chunk_at_another_level_is_found_in_audio_without_pauses():
    time = np.arange(len(WHOLE)) / RATE
    steady = (WHOLE + 0.1 * np.sin(2 * np.pi * 210 * time)).astype(np.float32)
    assert kinds(steady) == set()
    steady[BOUNDARIES[2] : BOUNDARIES[3]] *= 0.01
    assert "level" in kinds(steady)


def test_any_difference_from_the_whole_decode_is_found():
    altered = WHOLE.copy()
    altered[12_345] += 1e-4
    assert kinds(altered, whole=WHOLE) == {"difference"}


def test_channels_that_do_not_belong_together_are_found():
    same = np.stack([WHOLE, WHOLE], axis=1)
    assert channel_correlation(same) == pytest.approx(1.0)
    swapped = np.stack([WHOLE, speech(5.04, seed=1)[::-1]], axis=1)
    dead = np.stack([WHOLE, np.zeros_like(WHOLE)], axis=1)
    for damaged in (swapped, dead):
        found = examine(damaged, RATE, BOUNDARIES, expected_samples=len(WHOLE))
        assert "channels" in {fault.kind for fault in found.faults}
    assert examine(same, RATE, BOUNDARIES, expected_samples=len(WHOLE)).faults == ()


def test_mono_has_no_channel_correlation():
    assert channel_correlation(WHOLE) is None


def test_audio_too_short_for_any_window_is_examined_too():
    assert examine(WHOLE[:10], RATE, [], expected_samples=10).faults == ()

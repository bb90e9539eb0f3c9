"""Finds what chunked streaming can do to audio: lost and repeated samples, gaps, clicks at chunk boundaries.

All functions take float32 audio, [n] for mono or [n, channels], and know nothing of how it came about. Each
compares with the audio itself: a boundary must look like the inside of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Audio = npt.NDArray[np.float32]

GAP_SECONDS = 0.010
REPEAT_SECONDS = 0.020
NEAR_SECONDS = 0.020
CLICK_FACTOR = 2.0
CLICK_FLOOR = 1e-3
LEVEL_FACTOR = 1.5
LEVEL_FLOOR = 4.0
QUIET_RMS = 1e-4
EXACT = 1e-5
MIN_CORRELATION = 0.5

# An odd multiplier modulo 2**64 (the fractional part of the golden ratio), so that it has an inverse.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)


@dataclass(frozen=True)
class Fault:
    """kind: length, gap, repeat, click, level, channels or difference. sample: where it begins."""

    kind: str
    sample: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} at sample {self.sample}: {self.detail}"


@dataclass(frozen=True)
class Findings:
    """What was found in one stream. figures: what was measured on the way, for the report."""

    faults: tuple[Fault, ...]
    figures: dict[str, float] = field(default_factory=dict)


def mono(samples: Audio) -> Audio:
    """The mean of the channels, [n]."""
    return samples if samples.ndim == 1 else samples.mean(axis=1)


def constant_runs(samples: Audio, shortest: int) -> list[tuple[int, int]]:
    """(begin, end) of runs of at least `shortest` samples in which no channel moves: digital silence, or a
    player that holds the last value."""
    still = np.diff(samples, axis=0) == 0
    if still.ndim == 2:
        still = still.all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2) + np.array([0, 1])
    return [(int(begin), int(end)) for begin, end in runs if end - begin >= shortest]


def gaps(samples: Audio, sample_rate: int, whole: Audio | None = None) -> list[Fault]:
    """Digital silence of more than 10 ms; where the whole decode is given, only what it does not have there
    too."""
    shortest = int(GAP_SECONDS * sample_rate) + 1
    allowed = set() if whole is None else set(constant_runs(whole, shortest))
    return [
        Fault("gap", begin, f"{1000 * (end - begin) / sample_rate:.1f} ms of digital silence")
        for begin, end in constant_runs(samples, shortest)
        if (begin, end) not in allowed
    ]


def repeats(samples: Audio, sample_rate: int) -> list[Fault]:
    """Segments of at least 20 ms that come a second time bit by bit. Constant ones do not count.

    Every window gets a polynomial hash from prefix sums modulo 2**64; equal hashes are compared bit by bit.
    So the cost is that of a sort, O(n log n).
    """
    signal = np.ascontiguousarray(mono(samples), np.float32)
    length = int(REPEAT_SECONDS * sample_rate)
    count = len(signal) - length + 1
    if count < 2:
        return []
    power = np.full(len(signal), _BASE, np.uint64)
    power[0] = 1
    np.multiply.accumulate(power, out=power)
    inverse = np.full(count, _INVERSE, np.uint64)
    inverse[0] = 1
    np.multiply.accumulate(inverse, out=inverse)
    # +0.0 makes -0.0 the same number.
    bits = (signal + np.float32(0.0)).view(np.uint32).astype(np.uint64) + np.uint64(1)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(bits * power, dtype=np.uint64)])
    hashes = (sums[length:] - sums[:-length]) * inverse
    moves = np.concatenate([[0], np.cumsum(np.diff(signal) != 0)])
    alive = np.flatnonzero(moves[length - 1 :] - moves[:count] > 0)
    order = alive[np.argsort(hashes[alive], kind="stable")]
    same = hashes[order[1:]] == hashes[order[:-1]]
    pairs = [(int(a), int(b)) for a, b in zip(order[:-1][same], order[1:][same], strict=True)]
    pairs = [(a, b) for a, b in pairs if np.array_equal(signal[a : a + length], signal[b : b + length])]
    return [
        Fault("repeat", b, f"{1000 * size / sample_rate:.1f} ms are bit by bit those of sample {a}")
        for a, b, size in _joined(sorted(pairs, key=lambda pair: pair[1]), length)
    ]


def _joined(pairs: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int, int]]:
    """Windows that follow each other as (first, repeated, samples)."""
    found: list[tuple[int, int, int]] = []
    for first, again in pairs:
        if found:
            a, b, size = found[-1]
            if again - b == first - a and again <= b + size:
                found[-1] = (a, b, again - b + length)
                continue
        found.append((first, again, length))
    return found


def clicks(samples: Audio, sample_rate: int, boundaries: Sequence[int]) -> list[Fault]:
    """Boundaries at which the signal bends more than twice as sharply as anywhere within 20 ms of them.

    The bend is the second difference: what is left when a sample is predicted from the line through the last
    two.
    """
    signal = mono(samples).astype(np.float64)
    bend = np.abs(np.diff(signal, 2))  # bend[i] involves samples i, i + 1, i + 2
    near = int(NEAR_SECONDS * sample_rate)
    others = bend.copy()
    for boundary in boundaries:
        others[max(0, boundary - 2) : boundary + 1] = 0.0
    found = []
    for boundary in boundaries:
        here = float(bend[max(0, boundary - 2) : boundary + 1].max(initial=0.0))
        around = float(others[max(0, boundary - 2 - near) : boundary + near].max(initial=0.0))
        if here > CLICK_FLOOR and here > CLICK_FACTOR * around:
            found.append(Fault("click", boundary, f"bends by {here:.4f}, within 20 ms at most {around:.4f}"))
    return found


def level_ratios(samples: Audio, sample_rate: int, positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """For each position the larger RMS of the 20 ms before and after over the smaller, [positions]."""
    signal = mono(samples).astype(np.float64)
    near = int(NEAR_SECONDS * sample_rate)
    sums = np.concatenate([[0.0], np.cumsum(signal**2)])
    at = np.array([p for p in positions if near <= p <= len(signal) - near], np.int64)
    before = np.sqrt((sums[at] - sums[at - near]) / near)
    after = np.sqrt((sums[at + near] - sums[at]) / near)
    high, low = np.maximum(before, after), np.minimum(before, after)
    ratio: npt.NDArray[np.float64] = (high + QUIET_RMS) / (low + QUIET_RMS)
    return ratio


def level_steps(samples: Audio, sample_rate: int, boundaries: Sequence[int]) -> list[Fault]:
    """Boundaries at which the level steps by clearly more than anywhere inside the chunks."""
    near = int(NEAR_SECONDS * sample_rate)
    inside = _inside(len(samples), boundaries, near)
    usual = float(level_ratios(samples, sample_rate, inside).max(initial=1.0))
    limit = max(LEVEL_FLOOR, LEVEL_FACTOR * usual)
    usable = [b for b in boundaries if near <= b <= len(samples) - near]
    return [
        Fault("level", b, f"RMS changes by a factor of {ratio:.1f}, inside the chunks by at most {usual:.1f}")
        for b, ratio in zip(usable, level_ratios(samples, sample_rate, usable).tolist(), strict=True)
        if ratio > limit
    ]


def _inside(length: int, boundaries: Sequence[int], near: int) -> list[int]:
    """Positions every quarter of `near` that are further than `near` from each boundary."""
    positions = np.arange(near, max(near, length - near), max(1, near // 4))
    for boundary in boundaries:
        positions = positions[np.abs(positions - boundary) > near]
    inside: list[int] = positions.tolist()
    return inside


def channel_correlation(samples: Audio) -> float | None:
    """The smallest correlation between neighbouring channels; None for mono or silence in all channels."""
    if samples.ndim == 1 or samples.shape[1] < 2 or not np.any(samples):
        return None
    centred = samples - samples.mean(axis=0)
    norms = np.sqrt((centred.astype(np.float64) ** 2).sum(axis=0))
    if not norms.all():
        return 0.0
    products = (centred[:, 1:].astype(np.float64) * centred[:, :-1]).sum(axis=0)
    return float((products / (norms[1:] * norms[:-1])).min())


def differences(samples: Audio, whole: Audio, tolerance: float = EXACT) -> list[Fault]:
    """The first sample that is off by more than the tolerance from the whole decode of the same codes."""
    shared = min(len(samples), len(whole))
    off = np.abs(samples[:shared].astype(np.float64) - whole[:shared])
    off = off if off.ndim == 1 else off.max(axis=1)
    found = []
    if len(samples) != len(whole):
        found.append(Fault("length", shared, f"{len(samples)} samples, the whole decode has {len(whole)}"))
    if (off > tolerance).any():
        first = int((off > tolerance).argmax())
        found.append(Fault("difference", first, f"off by {off[first]:.2e}, at most by {off.max():.2e}"))
    return found


def examine(
    samples: Audio,
    sample_rate: int,
    boundaries: Sequence[int],
    *,
    expected_samples: int,
    whole: Audio | None = None,
) -> Findings:
    """Every check on one stream.

    boundaries: first sample of each chunk but the first. expected_samples: frames times samples a frame, less
    what the codec never gives. whole: decode of the same codes in one call, where they are known.
    """
    faults: list[Fault] = []
    if len(samples) != expected_samples:
        faults.append(Fault("length", len(samples), f"{len(samples)} samples, {expected_samples} were due"))
    faults += gaps(samples, sample_rate, whole)
    faults += repeats(samples, sample_rate)
    faults += clicks(samples, sample_rate, boundaries)
    faults += level_steps(samples, sample_rate, boundaries)
    figures: dict[str, float] = {}
    ratios = level_ratios(samples, sample_rate, boundaries)
    if len(ratios):
        figures["largest_level_ratio"] = float(ratios.max())
    correlation = channel_correlation(samples)
    if correlation is not None:
        figures["channel_correlation"] = correlation
        # A voice that is wide by design has the same correlation in its whole decode.
        least = MIN_CORRELATION if whole is None else (channel_correlation(whole) or 0.0) - 1e-3
        if correlation < least:
            faults.append(
                Fault("channels", 0, f"correlation of channels {correlation:.4f}, below {least:.4f}")
            )
    if whole is not None:
        faults += differences(samples, whole)
        shared = min(len(samples), len(whole))
        if shared:
            figures["largest_difference"] = float(np.abs(samples[:shared] - whole[:shared]).max())
    return Findings(tuple(faults), figures)

"""Random numbers that depend on (seed, frame, index) and on nothing else.

A generator's state would tie a stream's numbers to the order of the batch. A counter-based generator
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is a pure function instead: the same
stream draws the same numbers alone, among others, on any slot and on any device. The mixing function is the
finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

It runs on the host: a step's numbers for all rows are one array, made by about twenty vectorised operations
on unsigned integers, and travel to the device with the step's other inputs.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

_FRAME = np.uint64(0x9E3779B97F4A7C15)
_INDEX = np.uint64(0xD1B54A32D192ED03)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_TO_23_BITS = np.uint64(41)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> _SHIFT_1)) * _MULTIPLY_1
    x = (x ^ (x >> _SHIFT_2)) * _MULTIPLY_2
    return x ^ (x >> _SHIFT_3)


def seed_key(seed: int) -> np.uint64:
    """A request's seed, any integer (modulo 2**64), as the well-mixed key that `counter_bits` takes."""
    return np.uint64(_mix(np.array([seed & (2**64 - 1)], np.uint64) + _FRAME)[0])


def counter_bits(keys: np.ndarray, frames: np.ndarray, count: int) -> np.ndarray:
    """64 random bits for each (key, frame, index < count).

    keys: uint64 [B], from `seed_key`. frames: integer [B], not negative. Returns uint64 [B, count].
    """
    row = keys + frames.astype(np.uint64) * _FRAME
    return _mix(row[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _INDEX)


def _uniform(bits: np.ndarray) -> np.ndarray:
    # 23 bits and a half: exact in float32 too, and never 0 or 1.
    return ((bits >> _TO_23_BITS) + 0.5) * 2.0**-23


def counter_noise(
    keys: np.ndarray, frames: np.ndarray, count: int, kind: Literal["uniform", "normal"] = "uniform"
) -> np.ndarray:
    """Random numbers for each (key, frame, index < count): float32 [B, count].

    keys: uint64 [B], from `seed_key`. frames: integer [B]. kind: "uniform" in (0, 1), or standard "normal"
    (Box-Muller, in float64 and then rounded, so that vectorised and scalar code paths agree).
    """
    if kind == "uniform":
        return _uniform(counter_bits(keys, frames, count)).astype(np.float32)
    uniform = _uniform(counter_bits(keys, frames, 2 * count))
    radius = np.sqrt(-2.0 * np.log(uniform[:, :count]))
    return (radius * np.cos(2.0 * math.pi * uniform[:, count:])).astype(np.float32)

"""Counter noise: a pure function of seed, frame and index, with the distributions it claims."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.noise import counter_bits, counter_noise, seed_key


def keys(*seeds: int) -> np.ndarray:
    return np.array([seed_key(s) for s in seeds], np.uint64)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(-(2**63), 2**64), frame=st.integers(0, 2**31), place=st.integers(0, 6))
def test_a_row_s_numbers_do_not_depend_on_its_batch(seed: int, frame: int, place: int) -> None:
    others = np.arange(7, dtype=np.int64)
    batch = keys(*range(7))
    batch[place], others[place] = seed_key(seed), frame
    for kind in ("uniform", "normal"):
        alone = counter_noise(keys(seed), np.array([frame]), 33, kind)
        among = counter_noise(batch, others, 33, kind)
        np.testing.assert_array_equal(among[place], alone[0])


def test_fewer_numbers_are_the_first_of_more() -> None:
    few = counter_noise(keys(5), np.array([3]), 4)
    many = counter_noise(keys(5), np.array([3]), 32)
    np.testing.assert_array_equal(few, many[:, :4])


def split_mix(x: int) -> int:
    """The finaliser of SplitMix64 in whole numbers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_bits_are_split_mix_of_seed_frame_and_index() -> None:
    golden, step = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
    for seed, frame in ((0, 0), (1, 7), (2**64 - 1, 123_456)):
        key = split_mix((seed + golden) % 2**64)
        expected = [split_mix((key + frame * golden + i * step) % 2**64) for i in (1, 2, 3)]
        assert counter_bits(keys(seed), np.array([frame]), 3)[0].tolist() == expected


def test_seeds_of_any_size_and_sign_count_modulo_two_to_the_64() -> None:
    assert seed_key(-1) == seed_key(2**64 - 1)
    assert seed_key(2**64 + 3) == seed_key(3)
    assert len({int(seed_key(s)) for s in range(10_000)}) == 10_000


def test_uniform_numbers_lie_inside_the_open_interval_and_fill_it_evenly() -> None:
    u = counter_noise(keys(*range(500)), np.arange(500), 400)
    assert u.dtype == np.float32
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    counts = np.histogram(u, 50, (0, 1))[0]
    # Chi-square with 49 degrees of freedom: 99.99 % lie below 98.
    assert ((counts - 4000) ** 2 / 4000).sum() < 98


def test_normal_numbers_have_the_moments_of_the_normal_distribution() -> None:
    z = counter_noise(keys(*range(300)), np.arange(300), 500, "normal").astype(np.float64)
    assert np.isfinite(z).all()
    error = z.size**-0.5
    assert abs(z.mean()) < 5 * error
    assert abs(z.var() - 1) < 5 * 2**0.5 * error
    assert abs((z**3).mean()) < 5 * 15**0.5 * error
    assert abs((z**4).mean() - 3) < 5 * 96**0.5 * error


def test_neighbouring_seeds_frames_and_indices_are_not_correlated() -> None:
    u = counter_noise(np.repeat(keys(*range(100)), 100), np.tile(np.arange(100), 100), 20)
    u = u.reshape(100, 100, 20).astype(np.float64) - 0.5
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1]), (u[:, :, 1:], u[:, :, :-1])):
        assert abs((a * b).mean() * 12) < 5 * a.size**-0.5

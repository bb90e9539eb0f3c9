"""Sizes of prefill runs: as large as a step is long, learnt from measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.prefill import PrefillBudget, run_bucket


def learn(cost: Callable[[int], float], step: float, largest: int, rounds: int = 60) -> tuple[int, float]:
    """Alternate steps with runs of the allowed size; returns the last size and the longest run."""
    budget = PrefillBudget(largest)
    longest = 0.0
    for _ in range(rounds):
        budget.observe_step(4, step)
        size = budget.positions(4)
        longest = max(longest, cost(size))
        budget.observe_both(size, 4, step + cost(size))
    return budget.positions(4), longest


def test_buckets_are_powers_of_two_from_sixteen_up_to_the_largest() -> None:
    assert [run_bucket(n, 100) for n in (1, 16, 17, 64, 65, 500)] == [16, 16, 32, 64, 100, 100]
    assert run_bucket(1000, None) == 1024
    assert run_bucket(3, 8) == 8


def test_a_run_that_delays_nobody_may_be_the_largest() -> None:
    assert PrefillBudget(256).positions(0) == 256


def test_runs_are_small_until_costs_are_known() -> None:
    assert PrefillBudget(256).positions(4) == 16


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (lambda n: 0.001 + n * 1e-6, 256),  # a GPU: nearly the same for any size
        (lambda n: n * 1e-4, 64),  # a CPU: as much a position
        (lambda n: n * 1e-2, 16),  # nothing fits, the smallest has to do
    ],
)
def test_runs_grow_to_the_cost_of_a_step(cost: Callable[[int], float], expected: int) -> None:
    size, longest = learn(cost, step=0.01, largest=256)
    assert size == expected
    # One size is tried before it is known to be too large, and that is at most twice as large.
    assert longest <= max(2 * 0.01, cost(16))


def test_a_family_s_own_limit_below_sixteen_is_kept() -> None:
    assert PrefillBudget(8).positions(0) == PrefillBudget(8).positions(4) == 8

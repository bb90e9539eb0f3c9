"""How many prompt positions one prefill run may take, so that running streams wait for at most about a step.

Prompts are cut into runs of bucket sizes (16, 32, ... up to `Talker.prefill_chunk`). Which bucket costs as
much as a
step depends on the machine, so it is measured while serving: a GPU takes hundreds of positions in the time
    of a step, a CPU as many as the step has rows.
"""

from __future__ import annotations

SMALLEST_RUN = 16
_WEIGHT = 0.2  # of a new measurement in the moving averages


def run_bucket(positions: int, largest: int | None) -> int:
    """The bucket that a run of `positions` is padded to: a power of two from 16, at most `largest`."""
    bucket = SMALLEST_RUN
    while bucket < positions:
        bucket *= 2
    return bucket if largest is None else min(bucket, largest)


class PrefillBudget:
    """Learns what steps and prefill runs cost and chooses run sizes.

    largest: `Talker.prefill_chunk`, the size of a run that delays nobody.
    """

    def __init__(self, largest: int) -> None:
        self._sizes = [run_bucket(1, largest)]
        while self._sizes[-1] < largest:
            self._sizes.append(min(self._sizes[-1] * 2, largest))
        self._step_seconds: dict[int, float] = {}
        self._run_seconds: dict[int, float] = {}

    def observe_step(self, rows: int, seconds: float) -> None:
        """A step of that batch bucket, without a prefill before it, took `seconds`."""
        known = self._step_seconds.get(rows, seconds)
        self._step_seconds[rows] = known + _WEIGHT * (seconds - known)

    def observe_both(self, positions: int, rows: int, seconds: float) -> None:
        """A run that took `positions` (rows times bucket) and a step together took `seconds`."""
        if rows in self._step_seconds:
            # Only the sum is known where the device works asynchronously.
            cost = max(0.0, seconds - self._step_seconds[rows])
            size = max((s for s in self._sizes if s <= positions), default=self._sizes[0])
            known = self._run_seconds.get(size, cost)
            self._run_seconds[size] = known + _WEIGHT * (cost - known)

    def positions(self, rows: int) -> int:
        """Positions that a run may take while `rows` (a batch bucket) are stepping; 0 rows: nobody is
        delayed."""
        if rows == 0:
            return self._sizes[-1]
        allowed = self._sizes[0]
        step = self._step_seconds.get(rows)
        if step is None:
            return allowed
        for smaller, size in zip(self._sizes, self._sizes[1:], strict=False):
            # An unknown size is tried once the size below it fits: one run may overshoot, by at most twice.
            if self._run_seconds.get(smaller, float("inf")) > step or self._run_seconds.get(size, 0.0) > step:
                break
            allowed = size
        return allowed

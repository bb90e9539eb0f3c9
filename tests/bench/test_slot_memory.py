"""What a stream takes, measured from outside."""

from __future__ import annotations

import ctypes

import pytest
import torch

from bench.slot_memory import MEBIBYTE, slot_memory

CPU = torch.device("cpu")


class Model:
    """Keeps a row of floats a slot, and reports half of it."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.weights = torch.ones(4 * MEBIBYTE)

    def allocate(self, slots: int) -> None:
        self.state = torch.zeros(slots, self.row)

    def slot_bytes(self) -> int:
        return 2 * self.row


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs mallinfo2 of glibc 2.33")
@pytest.mark.parametrize("row", [1 << 18, 1 << 20])
def test_what_a_model_forgets_to_report_is_measured(row: int) -> None:
    memory = slot_memory(lambda: Model(row), lambda model, slots: model.allocate(slots), CPU)  # type: ignore[arg-type, return-value]
    assert memory.measured == pytest.approx(4 * row, rel=0.02)
    assert memory.reported == 2 * row
    assert memory.weights == pytest.approx(16 * MEBIBYTE, rel=0.01)

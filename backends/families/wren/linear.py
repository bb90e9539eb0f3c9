"""Matrix products whose result for a row does not depend on how many rows there are.

Sampling compares numbers and the decoder rounds its pitch, so a difference of one bit between "alone"
and "in a batch" can become another code, or a pitch that drifts. Math libraries take another path for
one, two or three rows (matrix times vector) than for more; from a few rows on, a row's sums are formed
in the same order however many rows there are. That holds with one thread a process (`engine.threads:
1`); with more, rows may be dealt out in groups smaller than that. So every product here is made with at
least `MINIMUM_ROWS` rows. tests/wren/test_steadiness.py checks that claim on the machine that runs it,
for the shapes of this family.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

MINIMUM_ROWS = 4


def steady_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K] times weight [N, K] plus bias [N], as `F.linear`, with at least `MINIMUM_ROWS` rows."""
    rows = x.numel() // x.shape[-1]
    if rows >= MINIMUM_ROWS:
        return F.linear(x, weight, bias)
    padded = F.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, MINIMUM_ROWS - rows))
    return F.linear(padded, weight, bias)[:rows].view(*x.shape[:-1], weight.shape[0])


def column_major(module: nn.Module) -> None:
    """Store the weights of linear layers and depthwise convolutions transposed in memory.

    Shapes and results stay. Products of few rows with such weights are up to a third faster, because the
    library need not reorder them; a convolution's taps [channels] become contiguous.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = transposed(part.weight.data)
        elif isinstance(part, nn.Conv1d) and part.groups == part.in_channels:
            part.weight.data = part.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)


def transposed(weight: torch.Tensor) -> torch.Tensor:
    """The same matrix, with its columns contiguous."""
    return weight.t().contiguous().t()

"""Linear layers whose weights are laid out for few rows, on CPUs.

A step multiplies a handful of rows with large matrices. The library that PyTorch calls for that reorders the
matrix each time, so that two rows cost twice as much as one, and sums a row in another order alone than among
others. oneDNN with the weights reordered once takes half the time at eight rows, and a row's result does not
depend on the rows beside it. (PyTorch's own compiler packs weights with the same operations.)
"""

from __future__ import annotations

import torch
from torch import nn

SMALLEST = 1 << 18
"""Numbers in a weight below which packing gains nothing."""
_ROWS = 8
_OPS = torch.ops.mkldnn


class PackedLinear(nn.Module):
    """`linear`, in float32 on a CPU, for inference. x: [..., in], at least one row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # Opaque to most operations, so an attribute and no parameter.
        self.weight = _OPS._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _OPS._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this PyTorch can pack that weight and it is worth it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= SMALLEST
        and torch.backends.mkldnn.is_available()
        and hasattr(_OPS, "_reorder_linear_weight")
        and hasattr(_OPS, "_linear_pointwise")
    )


def pack_linear(network: nn.Module) -> int:
    """Replace the large linear layers of a network by packed ones, which let go of the plain weights; returns
    how many."""
    count = 0
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and can_pack(child.weight):
                setattr(module, name, PackedLinear(child))
                count += 1
    return count

"""ConvNeXt blocks (Liu et al. 2022), one-dimensional, as in Vocos (Siuzdak 2023)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from backends.families.wren.linear import steady_linear


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm, two linear layers with GELU, scaled residual.

    The parameters are those of `nn.Conv1d` (depthwise), `nn.LayerNorm` and `nn.Linear`; the convolution
    itself is written as a sum of shifted products: far cheaper than `conv1d` for a few ticks, and the
    same for every batch size.
    """

    def __init__(self, width: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.project = nn.Linear(hidden, width)
        self.scale = nn.Parameter(torch.full((width,), 0.3))

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        """x [B, N, C], padded [B, kernel - 1 + N, C]: x with what lies before (and after) it."""
        count = x.shape[1]
        taps = self.depthwise.weight[:, 0].t().unbind(0)  # kernel times [C]
        y = torch.addcmul(cast(torch.Tensor, self.depthwise.bias), padded[:, :count], taps[0])
        for place, tap in enumerate(taps[1:], 1):
            y = torch.addcmul(y, padded[:, place : place + count], tap)
        y = F.gelu(steady_linear(self.norm(y), self.expand.weight, self.expand.bias))
        return torch.addcmul(x, self.scale, steady_linear(y, self.project.weight, self.project.bias))

    def causal(self, x: torch.Tensor, history: torch.Tensor | None = None) -> torch.Tensor:
        """x [B, N, C] follows history [B, kernel - 1, C], which becomes the newest inputs.

        Without a history x is a beginning: zeros lie before it.
        """
        if history is None:
            return self.forward(x, F.pad(x, (0, 0, self.kernel - 1, 0)))
        padded = torch.cat([history, x], 1)
        history.copy_(padded[:, x.shape[1] :])
        return self.forward(x, padded)

    def centred(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, N, C] with zeros before and after it."""
        return self.forward(x, F.pad(x, (0, 0, self.kernel // 2, self.kernel // 2)))

"""ConvNeXt block (Liu et al. 2022) with a causal depthwise convolution, as in Vocos and Qwen3-TTS."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from backends.layers.conv import CausalConv1d
from backends.layers.state import SlotCall


class CausalConvNeXt(nn.Module):
    """x + gamma * MLP(norm(depthwise(x))) on [B, C, T]."""

    def __init__(self, channels: int, kernel: int = 7, expansion: int = 4, eps: float = 1e-6) -> None:
        super().__init__()
        self.depthwise = CausalConv1d(channels, channels, kernel, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=eps)
        self.expand = nn.Linear(channels, expansion * channels)
        self.shrink = nn.Linear(expansion * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        y = self.depthwise(x, call).transpose(1, 2)
        y = self.gamma * self.shrink(F.gelu(self.expand(self.norm(y))))
        return x + y.transpose(1, 2)

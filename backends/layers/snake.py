"""Periodic activations of neural vocoders."""

from __future__ import annotations

import torch
from torch import nn


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha (Ziyin et al. 2020), alpha a channel, as in DAC and SNAC. x: [B, C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class SnakeBeta(nn.Module):
    """x + sin(a x)^2 / b with a = exp(alpha) and b = exp(beta) a channel, as in BigVGAN and Qwen3-TTS. x:
    [B, C, T].

    `freeze` computes both exponentials once: call it after the weights are loaded.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))
        self.register_buffer("_scales", None, persistent=False)

    def _exponentials(self) -> torch.Tensor:
        return torch.stack([self.alpha.exp(), (self.beta.exp() + 1e-9).reciprocal()])[:, None, :, None]

    def freeze(self) -> None:
        self._scales = self._exponentials().detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self._scales if self._scales is not None else self._exponentials()
        return x + b * torch.sin(a * x).square()


def freeze(network: nn.Module) -> nn.Module:
    """Precompute what depends on weights only, in every activation of `network`."""
    for module in network.modules():
        if isinstance(module, SnakeBeta):
            module.freeze()
    return network

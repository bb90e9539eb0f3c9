"""Rotary position embeddings (Su et al. 2021): plain, Llama 3 scaled, half-split or interleaved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequency scaling of Llama 3.1 and later ("rope_type": "llama3"), names as in its config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class RopeConfig:
    """theta: base. interleaved: rotate neighbouring pairs (GPT-J) instead of halves (Llama).
    dimensions: leading part of each head that is rotated; 0 is all."""

    theta: float = 10_000.0
    scaling: Llama3Scaling | None = None
    interleaved: bool = False
    dimensions: int = 0


def frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians a position: float32 [rotated dimensions / 2]."""
    size = config.dimensions or head_dim
    inverse = config.theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    scaling = config.scaling
    if scaling is None:
        return inverse
    wavelength = 2 * math.pi / inverse
    turns = scaling.original_max_position_embeddings / wavelength
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return inverse * (smooth + (1 - smooth) / scaling.factor)


class Rope(nn.Module):
    """Rotates queries and keys by their absolute positions."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        super().__init__()
        self.interleaved = config.interleaved
        self.size = config.dimensions or head_dim
        # Float32 whatever the weights: bfloat16 angles are useless beyond a few hundred positions.
        self._frequencies = frequencies(config, head_dim)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine for positions int64 [B, T]: float32 [B, T, 1, size / 2] each; shared by all
        layers."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions[:, :, None, None] * self._frequencies
        return angles.cos(), angles.sin()

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x: [B, T, heads, head_dim]."""
        cos, sin = angles
        rotated = x[..., : self.size].to(torch.promote_types(x.dtype, torch.float32))
        if self.interleaved:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            y = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = rotated.chunk(2, dim=-1)
            y = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        y = y.to(x.dtype)
        return y if self.size == x.shape[-1] else torch.cat([y, x[..., self.size :]], dim=-1)

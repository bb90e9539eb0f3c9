"""The codec's decoder network: latents at 12.5 Hz to band gains and pitch at 100 Hz, strictly causal."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import nn

from backends.families.wren.blocks import ConvNeXtBlock
from backends.families.wren.geometry import LATENT_SIZE, TICKS_PER_FRAME
from backends.families.wren.linear import steady_linear
from backends.families.wren.synthesis import HARMONIC_BANDS, NOISE_BANDS

FRAME_WIDTH = 256
FRAME_BLOCKS = 2
FRAME_KERNEL = 4
TICK_WIDTH = 224
TICK_BLOCKS = 5
TICK_KERNEL = 7
CENTRE_F0 = 180.0  # Hz


class Voicing(NamedTuple):
    """What the decoder says about N ticks, each float32 [B, N, ...].

    harmonic_gain [HARMONIC_BANDS] and noise_gain [NOISE_BANDS]: natural log. log_f0: natural log of Hz.
    voiced: logit, used in training only.
    """

    harmonic_gain: torch.Tensor
    noise_gain: torch.Tensor
    log_f0: torch.Tensor
    voiced: torch.Tensor


class Decoder(nn.Module):
    """Latents [B, T, LATENT_SIZE] to `Voicing` of T * TICKS_PER_FRAME ticks."""

    def __init__(self) -> None:
        super().__init__()
        self.latent_in = nn.Linear(LATENT_SIZE, FRAME_WIDTH)
        self.frame_blocks = nn.ModuleList(
            ConvNeXtBlock(FRAME_WIDTH, 2 * FRAME_WIDTH, FRAME_KERNEL) for _ in range(FRAME_BLOCKS)
        )
        self.upsample = nn.Linear(FRAME_WIDTH, TICKS_PER_FRAME * TICK_WIDTH)
        self.tick_blocks = nn.ModuleList(
            ConvNeXtBlock(TICK_WIDTH, 3 * TICK_WIDTH, TICK_KERNEL) for _ in range(TICK_BLOCKS)
        )
        self.norm = nn.LayerNorm(TICK_WIDTH)
        self.head = nn.Linear(TICK_WIDTH, HARMONIC_BANDS + NOISE_BANDS + 2)

    def forward(
        self,
        latents: torch.Tensor,
        frame_history: torch.Tensor | None = None,
        tick_history: torch.Tensor | None = None,
    ) -> Voicing:
        """Histories are those of `ConvNeXtBlock.causal`, updated in place; None starts from silence.

        frame_history: [B, FRAME_BLOCKS, FRAME_KERNEL - 1, FRAME_WIDTH].
        tick_history: [B, TICK_BLOCKS, TICK_KERNEL - 1, TICK_WIDTH].
        """
        batch, frames, _ = latents.shape
        x = steady_linear(latents, self.latent_in.weight, self.latent_in.bias)
        for index, block in enumerate(self.frame_blocks):
            x = cast(ConvNeXtBlock, block).causal(
                x, None if frame_history is None else frame_history[:, index]
            )
        x = steady_linear(x, self.upsample.weight, self.upsample.bias)
        x = x.view(batch, frames * TICKS_PER_FRAME, TICK_WIDTH)
        for index, block in enumerate(self.tick_blocks):
            x = cast(ConvNeXtBlock, block).causal(x, None if tick_history is None else tick_history[:, index])
        harmonic, noise, pitch, voiced = self.head(self.norm(x)).split([HARMONIC_BANDS, NOISE_BANDS, 1, 1], 2)
        return Voicing(
            harmonic_gain=harmonic * 2,
            noise_gain=noise * 2 - 2,
            log_f0=pitch[..., 0] * 0.3 + math.log(CENTRE_F0),
            voiced=voiced[..., 0],
        )

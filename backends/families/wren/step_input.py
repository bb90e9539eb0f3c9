"""What the backbone is told about a frame: which phones sound in it, for how long already, what comes
next."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from backends.families.wren.geometry import LATENT_SIZE, TICKS_PER_FRAME
from backends.families.wren.linear import steady_linear, transposed
from backends.families.wren.phone_encoder import PHONE_WIDTH

BACKBONE_WIDTH = 256
MAX_ELAPSED = 40  # ticks since the phone began, clipped
LOOK_AHEAD = 3  # phones from the pointer on


class StepInput(nn.Module):
    """Input vector of a frame.

    The sum of: the phones of its ticks and how long each has sounded; the next phones at the pointer
    (the phone that will sound after the frame) and how long the first has sounded; the previous frame's
    latent. In the first step, which makes no frame, a learnt vector stands for the ticks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tick_phones = nn.Linear(TICKS_PER_FRAME * PHONE_WIDTH, BACKBONE_WIDTH)
        self.tick_elapsed = nn.Embedding(TICKS_PER_FRAME * (MAX_ELAPSED + 1), BACKBONE_WIDTH)
        self.pointer_phones = nn.Linear(LOOK_AHEAD * PHONE_WIDTH, BACKBONE_WIDTH)
        self.pointer_elapsed = nn.Embedding(MAX_ELAPSED + 1, BACKBONE_WIDTH)
        self.latent = nn.Linear(LATENT_SIZE, BACKBONE_WIDTH)
        self.begin = nn.Parameter(torch.zeros(BACKBONE_WIDTH))

    def forward(
        self,
        phones: torch.Tensor,
        *,
        ticks: torch.Tensor,
        elapsed: torch.Tensor,
        pointer: torch.Tensor,
        pointer_elapsed: torch.Tensor,
        latents: torch.Tensor,
    ) -> torch.Tensor:
        """Inputs of a whole utterance (training): [B, T, BACKBONE_WIDTH], the first of them the begin
        step.

        phones: [B, P + LOOK_AHEAD, PHONE_WIDTH], zeros after the last phone. ticks, elapsed: int64
        [B, T, TICKS_PER_FRAME]. pointer, pointer_elapsed: int64 [B, T], after the frame. latents:
        [B, T, LATENT_SIZE] of the previous frame, in units of the codebooks' scale.
        """
        batch, frames, _ = ticks.shape
        rows = torch.arange(batch, device=ticks.device)[:, None, None]
        offsets = torch.arange(TICKS_PER_FRAME, device=ticks.device) * (MAX_ELAPSED + 1)
        sounding = self.tick_phones(phones[rows, ticks].reshape(batch, frames, -1))
        sounding = sounding + self.tick_elapsed(elapsed + offsets).sum(2)
        first = torch.arange(frames, device=ticks.device)[:, None] == 0
        sounding = torch.where(first, self.begin, sounding)
        ahead = pointer[..., None] + torch.arange(LOOK_AHEAD, device=ticks.device)
        coming = self.pointer_phones(phones[rows, ahead].reshape(batch, frames, -1))
        return sounding + coming + self.pointer_elapsed(pointer_elapsed) + self.latent(latents)


class FusedStepInput:
    """The same for one step of many rows, in one matrix product and one sum of embeddings."""

    def __init__(self, parts: StepInput, latent_scale: float) -> None:
        """latent_scale: unit of `StepInput.forward`'s latents; here they come unscaled."""
        latent = parts.latent.weight / latent_scale
        weights = [parts.tick_phones.weight, parts.pointer_phones.weight, latent]
        self.weight = transposed(torch.cat(weights, 1))
        self.bias = parts.tick_phones.bias + parts.pointer_phones.bias + parts.latent.bias
        self.elapsed = torch.cat([parts.tick_elapsed.weight, parts.pointer_elapsed.weight])
        self.begin_weight = parts.pointer_phones.weight
        self.begin_bias = (
            parts.begin + parts.pointer_elapsed.weight[0] + parts.pointer_phones.bias + parts.latent.bias
        )
        device = self.weight.device
        self.elapsed_offsets = torch.arange(TICKS_PER_FRAME + 1, device=device) * (MAX_ELAPSED + 1)

    def begin(self, phones: torch.Tensor) -> torch.Tensor:
        """Input of the begin step. phones: [B, LOOK_AHEAD, PHONE_WIDTH], the first ones."""
        return steady_linear(phones.flatten(1), self.begin_weight, self.begin_bias)

    def __call__(self, phones: torch.Tensor, elapsed: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Input of a frame.

        phones: [B, (TICKS_PER_FRAME + LOOK_AHEAD) * PHONE_WIDTH], of the ticks and from the pointer on.
        elapsed: int64 [B, TICKS_PER_FRAME + 1], of the ticks and at the pointer. latent: [B,
        LATENT_SIZE].
        """
        timing = F.embedding_bag(elapsed + self.elapsed_offsets, self.elapsed, mode="sum")
        return timing.add_(steady_linear(torch.cat([phones, latent], 1), self.weight, self.bias))

"""The residual vector quantiser's codebooks (SoundStream, Zeghidour et al. 2021)."""

from __future__ import annotations

import torch
from torch import nn

from backends.families.wren.geometry import CODEBOOK_SIZE, CODEBOOKS, LATENT_SIZE


class Codebooks(nn.Module):
    """codewords: float32 [CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE]; a frame's latent is the sum of its
    codewords."""

    codewords: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codewords", torch.zeros(CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE))

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes int64 [..., CODEBOOKS] to latents [..., LATENT_SIZE]."""
        return torch.stack([self.codewords[q][codes[..., q]] for q in range(CODEBOOKS)]).sum(0)

"""The talker's text encoder: phones see three neighbours' worth of context on either side, layer by
layer."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from backends.families.wren.blocks import ConvNeXtBlock
from backends.families.wren.phones import FEATURE_SIZES

PHONE_WIDTH = 192
PHONE_BLOCKS = 3
PHONE_KERNEL = 5


class PhoneEncoder(nn.Module):
    """Sum of the features' embeddings, then ConvNeXt blocks; a phone sees six phones to either side."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(size, PHONE_WIDTH) for name, size in FEATURE_SIZES.items()}
        )
        self.blocks = nn.ModuleList(
            ConvNeXtBlock(PHONE_WIDTH, 2 * PHONE_WIDTH, PHONE_KERNEL) for _ in range(PHONE_BLOCKS)
        )

    def forward(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Phone vectors [B, P, PHONE_WIDTH].

        features: int64 [B, P, 6]. lengths: int64 [B]; vectors beyond them are zero and change nothing
        before them, as if the row had been encoded alone. None: all P count.
        """
        x = torch.stack([e(features[..., i]) for i, e in enumerate(self.embeddings.values())]).sum(0)
        if lengths is None:
            for block in self.blocks:
                x = cast(ConvNeXtBlock, block).centred(x)
            return x
        places = torch.arange(features.shape[1], device=features.device)
        inside = (places < lengths[:, None])[..., None].to(x.dtype)
        x = x * inside
        for block in self.blocks:
            x = cast(ConvNeXtBlock, block).centred(x) * inside
        return x

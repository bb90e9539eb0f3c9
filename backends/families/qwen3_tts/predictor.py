"""The code predictor: codes 1 to 15 of a frame, one after the other, from the backbone's state and code 0.

A small transformer with a cache that lives for one frame; all rows of a step go through it together.
"""

from __future__ import annotations

import torch
from torch import nn

from backends.families.qwen3_tts.config import TalkerConfig, TransformerSizes
from backends.layers.backbone import Backbone, BackboneConfig
from backends.layers.rope import RopeConfig
from backends.sampler import Sampler


def backbone_config(sizes: TransformerSizes) -> BackboneConfig:
    """Qwen3 blocks. The talker's three-axis rotary positions are always equal, which is plain rotation."""
    return BackboneConfig(
        hidden=sizes.hidden,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate=sizes.intermediate,
        eps=sizes.norm_eps,
        qk_norm=True,
        rope=RopeConfig(theta=sizes.rope_theta),
    )


class CodePredictor(nn.Module):
    """embeddings: [codebooks - 1, codes, backbone hidden], of codes 1 and on; heads: their logits."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.books = config.codebooks - 1
        width, hidden = config.backbone.hidden, config.predictor.hidden
        self.backbone = Backbone(backbone_config(config.predictor))
        self.projection = nn.Linear(width, hidden) if config.projected else nn.Identity()
        self.embeddings = nn.Parameter(torch.empty(self.books, config.code_vocab, width))
        self.heads = nn.ModuleList(
            nn.Linear(hidden, config.code_vocab, bias=False) for _ in range(self.books)
        )

    def frame_embedding(self, codes: torch.Tensor) -> torch.Tensor:
        """Sum of the embeddings of codes 1.. : int64 [n, codebooks - 1] to [n, backbone hidden]."""
        books = torch.arange(self.books, device=codes.device)
        return self.embeddings[books, codes].sum(1)

    def forward(
        self, hidden: torch.Tensor, first: torch.Tensor, sampler: Sampler, uniform: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a frame's other codes.

        hidden, first: [B, backbone hidden], the backbone's output and the embedding of code 0. uniform:
        float32 [B, codebooks - 1]. Returns the codes, int64 [B, codebooks - 1], and the sum of the
        embeddings of all 16.
        """
        cache = self.backbone.local_cache()
        positions = torch.arange(self.books + 1, device=hidden.device)[None]
        x, begin = torch.stack([hidden, first], dim=1), 0
        total = first
        codes = []
        for book, head in enumerate(self.heads):
            at = positions[:, begin : begin + x.shape[1]]
            y = self.backbone(self.projection(x), at, cache.grow(x.shape[1], x.device))[:, -1]
            begin += x.shape[1]
            code = sampler.draw(head(y), uniform[:, book])
            embedding = self.embeddings[book][code]
            total = total + embedding
            codes.append(code)
            x = embedding[:, None]
        return torch.stack(codes, dim=1), total

"""From a frame's hidden state to its eight codes, one codebook after the other.

The network regresses the frame's latent. A codeword's logit is minus its squared distance to what is
left of that latent after the codewords chosen so far, plus a correction by a small network; so logits
are useful from the first hundred training steps on.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from backends.families.wren.drawing import CodeDraw
from backends.families.wren.geometry import CODEBOOK_SIZE, CODEBOOKS, LATENT_SIZE
from backends.families.wren.linear import transposed
from backends.families.wren.step_input import BACKBONE_WIDTH

DEPTH_WIDTH = 224


class Depth(nn.Module):
    """Parameters and the logits of one codebook at a time (training)."""

    def __init__(self) -> None:
        super().__init__()
        self.regression = nn.Sequential(
            nn.Linear(BACKBONE_WIDTH, BACKBONE_WIDTH), nn.GELU(), nn.Linear(BACKBONE_WIDTH, LATENT_SIZE)
        )
        self.log_distance_scale = nn.Parameter(torch.full((CODEBOOKS,), -1.5))
        self.hidden = nn.ModuleList(
            nn.Linear(BACKBONE_WIDTH + 2 * LATENT_SIZE, DEPTH_WIDTH) for _ in range(CODEBOOKS)
        )
        self.logits = nn.ModuleList(nn.Linear(DEPTH_WIDTH, CODEBOOK_SIZE) for _ in range(CODEBOOKS))

    def distance_scale(self, latent_scale: float) -> torch.Tensor:
        """Factor of the squared distances, float32 [CODEBOOKS]."""
        return torch.exp(self.log_distance_scale * 3 + 3) / latent_scale**2

    def forward(
        self,
        index: int,
        hidden: torch.Tensor,
        *,
        latent: torch.Tensor,
        partial: torch.Tensor,
        codewords: torch.Tensor,
        latent_scale: float,
    ) -> torch.Tensor:
        """Logits [..., CODEBOOK_SIZE] of codebook `index`.

        hidden: [..., BACKBONE_WIDTH]. latent: the regressed one, partial: sum of the codewords chosen
        so far, both [..., LATENT_SIZE]. codewords: [CODEBOOK_SIZE, LATENT_SIZE] of this codebook.
        """
        rest = latent - partial
        scale = self.distance_scale(latent_scale)[index]
        distance = scale * (2 * rest @ codewords.t() - codewords.pow(2).sum(-1))
        features = torch.cat([hidden, partial / latent_scale, rest / latent_scale], -1)
        return distance + self.logits[index](F.gelu(self.hidden[index](features)))


def _linears(layers: nn.ModuleList) -> list[nn.Linear]:
    return [cast(nn.Linear, layer) for layer in layers]


class SteppingDepth:
    """Draws all codes of a frame, with what does not depend on the codes chosen so far computed at
    once."""

    def __init__(self, depth: Depth, codewords: torch.Tensor, latent_scale: float) -> None:
        """codewords: [CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE]."""
        self.regression = depth.regression
        self.latent_scale = latent_scale
        self.codewords = codewords
        scale = depth.distance_scale(latent_scale)
        common, rests, logits, biases = [], [], [], []
        hidden_layers, logit_layers = _linears(depth.hidden), _linears(depth.logits)
        for index in range(CODEBOOKS):
            of_hidden, of_partial, of_rest = hidden_layers[index].weight.split(
                [BACKBONE_WIDTH, LATENT_SIZE, LATENT_SIZE], 1
            )
            # partial = latent - rest, so the layer is a function of hidden and latent, and of rest.
            common.append(torch.cat([of_hidden, of_partial / latent_scale], 1))
            rests.append(((of_rest - of_partial) / latent_scale).t().contiguous())
            to_logits = torch.cat([logit_layers[index].weight, 2 * scale[index] * codewords[index]], 1)
            logits.append(transposed(to_logits))
            biases.append(logit_layers[index].bias - scale[index] * codewords[index].pow(2).sum(-1))
        self.common_weight = transposed(torch.cat(common))
        self.common_bias = torch.cat([layer.bias for layer in hidden_layers])
        self.rest_weights = rests
        self.logit_weights = logits
        self.logit_biases = biases

    def draw(self, hidden: torch.Tensor, draw: CodeDraw) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes int64 [B, CODEBOOKS] and the sum of their codewords [B, LATENT_SIZE].

        hidden: [B, BACKBONE_WIDTH], at least MINIMUM_ROWS rows.
        """
        latent = self.regression(hidden) * self.latent_scale
        common = F.linear(torch.cat([hidden, latent], 1), self.common_weight, self.common_bias)
        rest = latent.clone()
        codes = []
        for index, base in enumerate(common.split(DEPTH_WIDTH, 1)):
            features = F.gelu(torch.addmm(base, rest, self.rest_weights[index]))
            logits = F.linear(
                torch.cat([features, rest], 1), self.logit_weights[index], self.logit_biases[index]
            )
            code = draw(index, logits)
            codes.append(code)
            rest.sub_(self.codewords[index].index_select(0, code[:, 0]))
        return torch.cat(codes, 1), latent - rest

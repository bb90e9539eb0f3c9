"""The talker's decoder-only transformer over frames, with a sliding window of 64 frames (5.1 s)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from backends.families.wren.linear import steady_linear
from backends.families.wren.step_input import BACKBONE_WIDTH

LAYERS = 3
HEADS = 4
HEAD_WIDTH = BACKBONE_WIDTH // HEADS
FEED_FORWARD_WIDTH = 640
WINDOW = 64
ROPE_BASE = 1000.0


def rope_frequencies() -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021): radians a frame, float32 [HEAD_WIDTH / 2]."""
    half = HEAD_WIDTH // 2
    return ROPE_BASE ** (-torch.arange(half) / half)


class Layer(nn.Module):
    """Pre-norm attention and SwiGLU feed-forward without biases (as in Llama)."""

    def __init__(self) -> None:
        super().__init__()
        width = BACKBONE_WIDTH
        self.attention_norm = nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.gate_and_up = nn.Linear(width, 2 * FEED_FORWARD_WIDTH, bias=False)
        self.down = nn.Linear(FEED_FORWARD_WIDTH, width, bias=False)

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Whole utterances (training). x: [B, T, BACKBONE_WIDTH]. cosine, sine: [T, HEAD_WIDTH / 2]. mask: [T, T]."""
        batch, frames, _ = x.shape
        qkv = self.query_key_value(self.attention_norm(x)).view(batch, frames, 3, HEADS, HEAD_WIDTH)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        heard = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.attention_out(heard.transpose(1, 2).reshape(batch, frames, -1))
        gate, up = self.gate_and_up(self.feed_forward_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + HEAD_WIDTH / 2) of x [..., HEAD_WIDTH]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(BACKBONE_WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Whole utterances (training). x: [B, T, BACKBONE_WIDTH], from the begin step on. Returns the same shape."""
        places = torch.arange(x.shape[1], device=x.device)
        angles = places[:, None].float() * rope_frequencies().to(x.device)
        cosine, sine = torch.cos(angles), torch.sin(angles)
        mask = (places <= places[:, None]) & (places > places[:, None] - WINDOW)
        for layer in self.layers:
            x = layer(x, cosine, sine, mask)
        return self.norm(x)


class SteppingBackbone:
    """The same, one frame of many rows at a time, over rings of keys and values that belong to slots.

    rings: float32 [LAYERS, (slots + 1) * WINDOW, 2 * BACKBONE_WIDTH], key and value of one frame a row.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.layers = list(backbone.layers)
        self.norm = backbone.norm
        # Pairs for the rotation lie side by side, so that it is one complex product; queries and keys are
        # permuted alike, which leaves their products as they were.
        half = HEAD_WIDTH // 2
        pairs = torch.stack([torch.arange(half), torch.arange(half) + half], 1).flatten()
        in_head = torch.arange(HEADS)[:, None] * HEAD_WIDTH + pairs
        order = torch.cat(
            [
                in_head.flatten(),
                BACKBONE_WIDTH + in_head.flatten(),
                torch.arange(BACKBONE_WIDTH) + 2 * BACKBONE_WIDTH,
            ]
        )
        self.query_key_value = [layer.query_key_value.weight[order].contiguous() for layer in self.layers]
        device = self.norm.weight.device
        self.frequencies = rope_frequencies().to(device)
        self.places = torch.arange(WINDOW, device=device)
        self.rings = torch.zeros(LAYERS, WINDOW, 2 * BACKBONE_WIDTH, device=device)

    def allocate(self, slots: int) -> None:
        shape = (LAYERS, (slots + 1) * WINDOW, 2 * BACKBONE_WIDTH)
        self.rings = torch.zeros(shape, device=self.rings.device)

    def __call__(self, slots: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, BACKBONE_WIDTH]. slots: int64 [B]. x: [B, BACKBONE_WIDTH]. position: int64 [B] from 0."""
        rows = x.shape[0]
        rotation = torch.polar(
            torch.ones_like(self.frequencies).expand(rows, -1), position[:, None].float() * self.frequencies
        )[:, None, None]
        mask = torch.where(self.places <= position[:, None], 0.0, -torch.inf)[:, None, None]
        newest = slots * WINDOW + position % WINDOW
        for layer, weight, ring in zip(self.layers, self.query_key_value, self.rings, strict=True):
            qkv = steady_linear(layer.attention_norm(x), weight)
            turned = (
                torch.view_as_complex(qkv[:, : 2 * BACKBONE_WIDTH].view(rows, 2, HEADS, HEAD_WIDTH // 2, 2))
                * rotation
            )
            query, key = torch.view_as_real(turned).view(rows, 2, HEADS, 1, HEAD_WIDTH).unbind(1)
            ring.index_copy_(0, newest, torch.cat([key.reshape(rows, -1), qkv[:, 2 * BACKBONE_WIDTH :]], 1))
            heard = ring.view(-1, WINDOW * 2 * BACKBONE_WIDTH).index_select(0, slots)
            keys, values = heard.view(rows, WINDOW, 2, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            x = x + steady_linear(y.view(rows, BACKBONE_WIDTH), layer.attention_out.weight)
            gate, up = steady_linear(layer.feed_forward_norm(x), layer.gate_and_up.weight).chunk(2, 1)
            x = x + steady_linear(F.silu(gate) * up, layer.down.weight)
        return self.norm(x)

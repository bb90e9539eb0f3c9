"""The talker's decoder-only transformer over frames, with a sliding window of 64 frames (5.1 s)."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn

from backends.families.wren.linear import transposed
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
        """Whole utterances (training). x: [B, T, BACKBONE_WIDTH]. cosine, sine: [T, HEAD_WIDTH / 2].
        mask: [T, T]."""
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
    """Layers and a last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(BACKBONE_WIDTH)

    def stack(self) -> list[Layer]:
        return [cast(Layer, layer) for layer in self.layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Whole utterances (training). x: [B, T, BACKBONE_WIDTH], from the begin step on. Returns the
        same shape."""
        places = torch.arange(x.shape[1], device=x.device)
        angles = places[:, None].float() * rope_frequencies().to(x.device)
        cosine, sine = torch.cos(angles), torch.sin(angles)
        mask = (places <= places[:, None]) & (places > places[:, None] - WINDOW)
        for layer in self.stack():
            x = layer(x, cosine, sine, mask)
        return self.norm(x)


class _Frame(NamedTuple):
    """What all layers need to know of a step's frames.

    slots: int64 [B]. newest: int64 [B], the rings' row for the frame. rotation: complex64
    [B, 1, HEAD_WIDTH / 2]. mask: float32 [B, 1, 1, WINDOW], added to attention scores.
    """

    slots: torch.Tensor
    newest: torch.Tensor
    rotation: torch.Tensor
    mask: torch.Tensor


class SteppingBackbone:
    """The same, one frame of many rows at a time, over rings of keys and values that belong to slots.

    rings: float32 [LAYERS, (slots + 1) * WINDOW, 2 * BACKBONE_WIDTH], key and value of one frame a row.
    """

    def __init__(self, backbone: Backbone) -> None:
        norm = backbone.norm.weight
        self.layers = [_SteppingLayer(layer) for layer in backbone.stack()]
        self.norm_gain = norm * BACKBONE_WIDTH**0.5
        self.frequencies = rope_frequencies().to(norm.device)
        self.ones = torch.ones_like(self.frequencies)
        self.places = torch.arange(WINDOW, device=norm.device)
        self.rings = torch.zeros(LAYERS, WINDOW, 2 * BACKBONE_WIDTH, device=norm.device)

    def allocate(self, slots: int) -> None:
        shape = (LAYERS, (slots + 1) * WINDOW, 2 * BACKBONE_WIDTH)
        self.rings = torch.zeros(shape, device=self.rings.device)

    def clear(self, slots: torch.Tensor) -> None:
        """Forget what slots [B] heard, so that not even a NaN of an earlier stream can reach the next."""
        self.rings.view(LAYERS, -1, WINDOW, 2 * BACKBONE_WIDTH).index_fill_(1, slots, 0)

    def __call__(self, slots: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, BACKBONE_WIDTH].

        slots: int64 [B], at least MINIMUM_ROWS. x: [B, BACKBONE_WIDTH]. position: int64 [B] from 0.
        """
        angles = position[:, None] * self.frequencies
        rotation = torch.polar(self.ones.expand_as(angles), angles)[:, None]
        mask = torch.where(self.places <= position[:, None], 0.0, -torch.inf)[:, None, None]
        frame = _Frame(slots, slots * WINDOW + position % WINDOW, rotation, mask)
        for layer, ring in zip(self.layers, self.rings, strict=True):
            x = layer(x, ring, frame)
        return unit(x) * self.norm_gain


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of x [B, C] scaled to length 1: RMSNorm without its factor sqrt(C), in fewer operations."""
    return x / (torch.linalg.vector_norm(x, 2, 1, True) + 1e-9)


class _SteppingLayer:
    """A layer for one step, the norms' gains folded into the matrices after them."""

    def __init__(self, layer: Layer) -> None:
        scale = BACKBONE_WIDTH**0.5
        # Pairs for the rotation lie side by side, so that it is one complex product; queries and keys are
        # permuted alike, which leaves their products as they were.
        half = torch.arange(HEAD_WIDTH // 2)
        in_head = (
            torch.arange(2 * HEADS)[:, None] * HEAD_WIDTH + torch.stack([half, half + len(half)], 1).flatten()
        )
        order = torch.cat([in_head.flatten(), torch.arange(2 * BACKBONE_WIDTH, 3 * BACKBONE_WIDTH)])
        query_key_value = layer.query_key_value.weight * layer.attention_norm.weight * scale
        self.query_key_value = transposed(query_key_value[order])
        self.attention_out = layer.attention_out.weight.t().contiguous()
        self.gate_and_up = transposed(layer.gate_and_up.weight * layer.feed_forward_norm.weight * scale)
        self.down = layer.down.weight.t().contiguous()

    def __call__(
        self,
        x: torch.Tensor,
        ring: torch.Tensor,
        frame: _Frame,
    ) -> torch.Tensor:
        """x [B, BACKBONE_WIDTH] to the same. ring: this layer's part of `SteppingBackbone.rings`."""
        rows = x.shape[0]
        qkv = F.linear(unit(x), self.query_key_value)
        pairs = torch.view_as_complex(qkv.view(rows, 3 * HEADS, HEAD_WIDTH // 2, 2))
        pairs[:, : 2 * HEADS].mul_(frame.rotation)
        ring.index_copy_(0, frame.newest, qkv[:, BACKBONE_WIDTH:])
        heard = ring.view(-1, WINDOW * 2 * BACKBONE_WIDTH).index_select(0, frame.slots)
        keys, values = heard.view(rows, WINDOW, 2, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        query = qkv.view(rows, 3 * HEADS, 1, HEAD_WIDTH)[:, :HEADS]
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=frame.mask)
        x = torch.addmm(x, y.view(rows, BACKBONE_WIDTH), self.attention_out)
        gate, up = F.linear(unit(x), self.gate_and_up).chunk(2, 1)
        return torch.addmm(x, F.silu(gate).mul_(up), self.down)

"""One transformer for all families: Llama, Qwen2 and Qwen3 blocks and the small ones inside codecs.

What differs between them is configuration: norms, grouped queries, norms of queries and keys, rotary
embeddings, SwiGLU or GELU, biases, LayerScale. Attention runs over a cache view, so the same block serves
slots, rings, depth decoders and whole utterances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from backends.layers.cache import CacheView, LocalCache, SlotCache
from backends.layers.rope import Rope, RopeConfig
from backends.layers.state import SlotCall, StreamingModule


@dataclass(frozen=True)
class BackboneConfig:
    """Sizes and variants. rope None: no positions. window None: attention to everything before.

    qk_norm: RMSNorm of each head's queries and keys (Qwen3). qkv_bias: biases of those three only (Qwen2).
    layer_scale: learned factor on each residual branch. final_norm: norm after the last layer.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    qk_norm: bool = False
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    qkv_bias: bool = False
    bias: bool = False
    layer_scale: bool = False
    final_norm: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}; it must be a multiple of kv_heads, {self.kv_heads}")


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, computed in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # As Llama does it: rounded to the weights' dtype before the weight.
        return self.weight * F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype)


def _norm(config: BackboneConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.hidden, config.eps)
    return nn.LayerNorm(config.hidden, eps=config.eps)


class Attention(nn.Module):
    """Grouped-query attention. Queries, keys and values come from one matrix, in that order."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = nn.Linear(config.hidden, rows, bias=config.bias or config.qkv_bias)
        self.output = nn.Linear(config.heads * config.head_dim, config.hidden, bias=config.bias)
        self.query_norm = RMSNorm(config.head_dim, config.eps) if config.qk_norm else None
        self.key_norm = RMSNorm(config.head_dim, config.eps) if config.qk_norm else None

    def forward(
        self,
        x: torch.Tensor,
        rope: Rope | None,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        layer: int,
        cache: CacheView,
    ) -> torch.Tensor:
        batch, count, _ = x.shape
        groups = self.heads // self.kv_heads
        qkv = self.qkv(x).view(batch, count, -1, self.head_dim)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rope is not None and angles is not None:
            q, k = rope(q, angles), rope(k, angles)
        keys, values = cache.update(layer, k, v)
        # Heads that share keys are folded into the query length, so that keys are never repeated.
        q = q.view(batch, count, self.kv_heads, groups, self.head_dim).permute(0, 2, 3, 1, 4)
        mask = cache.mask
        if mask is not None and groups > 1 and count > 1:
            mask = mask.repeat(1, 1, groups, 1)
        y = F.scaled_dot_product_attention(
            q.reshape(batch, self.kv_heads, groups * count, self.head_dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
        )
        y = y.view(batch, self.kv_heads, groups, count, self.head_dim).permute(0, 3, 1, 2, 4)
        return self.output(y.reshape(batch, count, -1))


class FeedForward(nn.Module):
    """SwiGLU (gate and up come from one matrix, in that order) or GELU."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.gated = config.mlp == "swiglu"
        self.up = nn.Linear(config.hidden, config.intermediate * (1 + self.gated), bias=config.bias)
        self.down = nn.Linear(config.intermediate, config.hidden, bias=config.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if self.gated:
            gate, up = x.chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(x))


class Block(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.mlp_norm = _norm(config)
        self.mlp = FeedForward(config)
        self.attention_scale = nn.Parameter(torch.ones(config.hidden)) if config.layer_scale else None
        self.mlp_scale = nn.Parameter(torch.ones(config.hidden)) if config.layer_scale else None

    def forward(
        self,
        x: torch.Tensor,
        rope: Rope | None,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        layer: int,
        cache: CacheView,
    ) -> torch.Tensor:
        y = self.attention(self.attention_norm(x), rope, angles, layer, cache)
        x = x + (y if self.attention_scale is None else self.attention_scale * y)
        y = self.mlp(self.mlp_norm(x))
        return x + (y if self.mlp_scale is None else self.mlp_scale * y)


class Backbone(nn.Module):
    """The layers and the final norm; embeddings and heads belong to the families."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.rope = Rope(config.rope, config.head_dim) if config.rope is not None else None
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = _norm(config) if config.final_norm else None

    def slot_cache(self, slots: int, length: int, ring: bool = False) -> SlotCache:
        """A cache for this network's layers on its device; ring: keep only the last `window` positions."""
        weights = next(self.parameters())
        config = self.config
        return SlotCache(
            layers=config.layers,
            slots=slots,
            length=length,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            window=config.window,
            ring=ring,
            device=weights.device,
            dtype=weights.dtype,
        )

    def local_cache(self) -> LocalCache:
        """A cache for one call, for this network's layers."""
        return LocalCache(self.config.layers, self.config.window)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, cache: CacheView) -> torch.Tensor:
        """x: [B, T, hidden]. positions: int64 [B, T]. cache: a view for these positions. Returns [B, T,
        hidden]."""
        angles = self.rope.angles(positions) if self.rope is not None else None
        for i, layer in enumerate(self.layers):
            x = layer(x, self.rope, angles, i, cache)
        return x if self.norm is None else self.norm(x)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        """Run x [B, T, hidden] as whole sequences from position 0, without slots."""
        positions = torch.arange(x.shape[1], device=x.device)[None].expand(x.shape[0], -1)
        return self(x, positions, self.local_cache().grow(x.shape[1], x.device))


class StreamingTransformer(StreamingModule):
    """A sliding-window transformer inside a codec, on [B, T, hidden]. Its ring cache and position are slot
    state."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        if config.window is None:
            raise ValueError(
                "a streaming transformer needs a window; without one its state would have no bound"
            )
        self.backbone = Backbone(config)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"position": ()}

    def state_dtype(self, name: str, weights: torch.dtype) -> torch.dtype:
        return torch.int64

    def allocate_state(self, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        super().allocate_state(slots, device, dtype)
        self.cache = self.backbone.slot_cache(slots, 0, ring=True)
        # Views with the slot first, so that reset and slot_bytes treat them like any other state.
        self.state["keys"] = self.cache.keys.transpose(0, 1)
        self.state["values"] = self.cache.values.transpose(0, 1)

    def forward(self, x: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        if call is None:
            return self.backbone.whole(x)
        begin = call.read(self.state["position"])
        positions = begin[:, None] + torch.arange(x.shape[1], device=x.device)
        call.write(self.state["position"], begin + x.shape[1])
        return self.backbone(x, positions, self.cache.view(call.slots, positions, call=call))


def from_huggingface(state: Mapping[str, torch.Tensor], config: BackboneConfig) -> dict[str, torch.Tensor]:
    """Weights of a transformers Llama, Qwen2 or Qwen3 model ("layers.0.self_attn.q_proj.weight", ...,
    without any prefix) under this module's names, fused. Raises KeyError naming a missing one."""
    found: dict[str, torch.Tensor] = {}

    def fuse(target: str, sources: list[str]) -> None:
        for kind in ("weight", "bias"):
            if f"{sources[0]}.{kind}" in state or kind == "weight":
                found[f"{target}.{kind}"] = torch.cat([state[f"{s}.{kind}"] for s in sources])

    for i in range(config.layers):
        layer = f"layers.{i}"
        fuse(f"{layer}.attention.qkv", [f"{layer}.self_attn.{n}_proj" for n in "qkv"])
        fuse(f"{layer}.attention.output", [f"{layer}.self_attn.o_proj"])
        if config.qk_norm:
            fuse(f"{layer}.attention.query_norm", [f"{layer}.self_attn.q_norm"])
            fuse(f"{layer}.attention.key_norm", [f"{layer}.self_attn.k_norm"])
        fuse(f"{layer}.mlp.up", [f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"])
        fuse(f"{layer}.mlp.down", [f"{layer}.mlp.down_proj"])
        fuse(f"{layer}.attention_norm", [f"{layer}.input_layernorm"])
        fuse(f"{layer}.mlp_norm", [f"{layer}.post_attention_layernorm"])
    if config.final_norm:
        fuse("norm", ["norm"])
    return found

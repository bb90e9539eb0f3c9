"""The shared transformer against attention written out, over every cache and configuration."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from backends.layers.backbone import Backbone, BackboneConfig, from_huggingface
from backends.layers.cache import SlotCache
from backends.layers.rope import Llama3Scaling, RopeConfig, frequencies

LENGTH = 21
SIZES = {"hidden": 12, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 6, "intermediate": 20}
LLAMA3 = RopeConfig(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 16))
CONFIGS = {
    "llama": BackboneConfig(**SIZES),
    "llama 3": BackboneConfig(**SIZES, rope=LLAMA3),
    "qwen2": BackboneConfig(**SIZES, qkv_bias=True),
    "qwen3": BackboneConfig(**SIZES, qk_norm=True, rope=RopeConfig(1e6)),
    "gpt-j positions": BackboneConfig(**SIZES, rope=RopeConfig(interleaved=True, dimensions=4)),
    "no positions": BackboneConfig(**SIZES, rope=None),
    "codec": BackboneConfig(**SIZES, norm="layer", mlp="gelu", bias=True, layer_scale=True, window=6),
    "window": BackboneConfig(**SIZES, window=4),
}


def make(name: str) -> Backbone:
    torch.manual_seed(3)
    network = Backbone(CONFIGS[name]).double()
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.7, 0.7)
    return network


def rotate(x: torch.Tensor, position: int, rope: RopeConfig) -> torch.Tensor:
    """One head [D] rotated pair by pair, as the RoFormer paper writes it."""
    size = rope.dimensions or len(x)
    y = x.clone()
    for i, frequency in enumerate(frequencies(rope, len(x)).tolist()):
        a, b = (2 * i, 2 * i + 1) if rope.interleaved else (i, i + size // 2)
        c, s = math.cos(position * frequency), math.sin(position * frequency)
        y[a], y[b] = x[a] * c - x[b] * s, x[b] * c + x[a] * s
    return y


def written_out(network: Backbone, x: torch.Tensor) -> torch.Tensor:
    """The network on one sequence [T, hidden], query by query and head by head."""
    c = network.config
    for layer in network.layers:
        h = layer.attention_norm(x)
        q, k, v = layer.attention.qkv(h).split(
            [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim], 1
        )
        q, k, v = (t.view(len(x), -1, c.head_dim) for t in (q, k, v))
        if c.qk_norm:
            q, k = layer.attention.query_norm(q), layer.attention.key_norm(k)
        if c.rope is not None:
            q = torch.stack([torch.stack([rotate(a, t, c.rope) for a in row]) for t, row in enumerate(q)])
            k = torch.stack([torch.stack([rotate(a, t, c.rope) for a in row]) for t, row in enumerate(k)])
        rows = []
        for t in range(len(x)):
            begin = 0 if c.window is None else max(0, t - c.window + 1)
            heads = []
            for head in range(c.heads):
                shared = head // (c.heads // c.kv_heads)
                score = k[begin : t + 1, shared] @ q[t, head] / math.sqrt(c.head_dim)
                heads.append(score.softmax(0) @ v[begin : t + 1, shared])
            rows.append(torch.cat(heads))
        y = layer.attention.output(torch.stack(rows))
        x = x + (y if layer.attention_scale is None else layer.attention_scale * y)
        h = layer.mlp.up(layer.mlp_norm(x))
        if c.mlp == "swiglu":
            gate, up = h.chunk(2, 1)
            h = gate * gate.sigmoid() * up
        else:
            h = F.gelu(h)
        y = layer.mlp.down(h)
        x = x + (y if layer.mlp_scale is None else layer.mlp_scale * y)
    return network.norm(x) if network.norm is not None else x


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_whole_sequences_equal_attention_written_out(name: str) -> None:
    network = make(name)
    x = torch.randn(2, LENGTH, 12, dtype=torch.float64)
    expected = torch.stack([written_out(network, row) for row in x])
    # Angles are float32.
    torch.testing.assert_close(network.whole(x), expected, rtol=0, atol=2e-5)


def run(
    network: Backbone,
    cache: SlotCache,
    x: torch.Tensor,
    slots: list[int],
    prefill: list[int],
) -> torch.Tensor:
    """x [B, T, hidden]: prefill in padded runs, then step by step, attention reading only the next eight."""
    batch, total, width = x.shape
    where = torch.tensor(slots)
    out = torch.zeros(batch, total, width, dtype=x.dtype)
    begin = 0
    for size in prefill:
        padded = torch.randn(batch, size + 3, width, dtype=x.dtype)
        padded[:, :size] = x[:, begin : begin + size]
        positions = (begin + torch.arange(size + 3)).expand(batch, -1)
        valid = (torch.arange(size + 3) < size).expand(batch, -1)
        y = network(padded, positions, cache.view(where, positions, valid))
        out[:, begin : begin + size] = y[:, :size]
        begin += size
    for t in range(begin, total):
        positions = torch.full((batch, 1), t)
        length = min(-(-(t + 1) // 8) * 8, cache.length)
        out[:, t : t + 1] = network(x[:, t : t + 1], positions, cache.view(where, positions, None, length))
    return out


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("prefill", [[], [9], [1, 2, 5], [3, 11]], ids=str)
@torch.inference_mode()
def test_prefill_runs_and_steps_over_slots_equal_the_whole(name: str, prefill: list[int]) -> None:
    network = make(name)
    x = torch.randn(2, LENGTH, 12, dtype=torch.float64)
    y = run(network, network.slot_cache(3, 24), x, [2, 0], prefill)
    torch.testing.assert_close(y, network.whole(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["codec", "window"])
@pytest.mark.parametrize("prefill", [[], [9], [1, 2, 5], [3, 11]], ids=str)
@torch.inference_mode()
def test_a_ring_of_the_window_s_size_equals_the_whole(name: str, prefill: list[int]) -> None:
    network = make(name)
    x = torch.randn(2, LENGTH, 12, dtype=torch.float64)
    cache = network.slot_cache(3, 0, ring=True)
    assert cache.length == network.config.window
    torch.testing.assert_close(run(network, cache, x, [2, 0], prefill), network.whole(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("ring", [False, True])
@torch.inference_mode()
def test_a_used_slot_is_like_a_fresh_one_after_reset_even_if_it_held_nan(ring: bool) -> None:
    network = make("window")
    x = torch.randn(1, LENGTH, 12, dtype=torch.float64)
    cache = network.slot_cache(3, 24, ring)
    run(network, cache, torch.full_like(x, torch.nan), [1], [9])
    cache.reset(torch.tensor([1, 0]), torch.tensor([True, False]))
    torch.testing.assert_close(run(network, cache, x, [1], [9]), network.whole(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("ring", [False, True])
@torch.inference_mode()
def test_padding_rows_on_the_null_slot_and_rows_at_other_positions_change_nothing(ring: bool) -> None:
    network = make("window")
    x = torch.randn(2, LENGTH, 12, dtype=torch.float64)
    cache = network.slot_cache(3, 24, ring)
    run(network, cache, x[:1, :6], [2], [6])
    run(network, cache, x[1:, :2], [0], [2])
    begins = torch.tensor([6, 2, 0, 0])
    out = []
    for t in range(12):
        rows = torch.cat([x[:1, 6 + t], x[1:, 2 + t], torch.randn(2, 12).double()])[:, None]
        positions = begins[:, None] + t
        out.append(network(rows, positions, cache.view(torch.tensor([2, 0, 3, 3]), positions)))
    y = torch.cat(out, 1)
    whole = network.whole(x)
    torch.testing.assert_close(y[0], whole[0, 6:18], rtol=0, atol=1e-10)
    torch.testing.assert_close(y[1], whole[1, 2:14], rtol=0, atol=1e-10)


@torch.inference_mode()
def test_the_null_slot_s_position_may_grow_beyond_the_cache() -> None:
    network = make("llama")
    x = torch.randn(1, LENGTH, 12, dtype=torch.float64)
    cache = network.slot_cache(3, 24)
    out = []
    for t in range(LENGTH):
        positions = torch.tensor([[t], [1000 + t]])
        rows = x[:, t : t + 1].expand(2, -1, -1)
        out.append(network(rows, positions, cache.view(torch.tensor([1, 3]), positions, None, 24))[:1])
    torch.testing.assert_close(torch.cat(out, 1), network.whole(x), rtol=0, atol=1e-10)


@torch.inference_mode()
def test_a_local_cache_serves_a_depth_decoder() -> None:
    network = make("qwen3")
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    cache = network.local_cache()
    out, begin = [], 0
    for size in (2, 1, 1, 3):
        positions = (begin + torch.arange(size)).expand(2, -1)
        out.append(network(x[:, begin : begin + size], positions, cache.grow(size, x.device)))
        begin += size
    torch.testing.assert_close(torch.cat(out, 1), network.whole(x), rtol=0, atol=1e-10)


def test_llama_3_scaling_keeps_high_frequencies_and_divides_low_ones() -> None:
    plain = frequencies(RopeConfig(500_000.0), 64)
    scaled = frequencies(RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)), 64)
    wavelength = 2 * math.pi / plain
    assert torch.equal(scaled[wavelength < 8192 / 4], plain[wavelength < 8192 / 4])
    torch.testing.assert_close(scaled[wavelength > 8192], plain[wavelength > 8192] / 8)
    assert (scaled.diff() <= 0).all()


@torch.inference_mode()
def test_weights_in_hugging_face_s_names_are_fused() -> None:
    config = CONFIGS["qwen3"]
    network = make("qwen3")
    theirs: dict[str, torch.Tensor] = {"norm.weight": network.norm.weight}
    for i, layer in enumerate(network.layers):
        attention, mlp = layer.attention, layer.mlp
        q, k, v = attention.qkv.weight.split([24, 12, 12])
        gate, up = mlp.up.weight.chunk(2)
        for name, tensor in {
            "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
            "self_attn.o_proj": attention.output.weight, "self_attn.q_norm": attention.query_norm.weight,
            "self_attn.k_norm": attention.key_norm.weight, "mlp.gate_proj": gate, "mlp.up_proj": up,
            "mlp.down_proj": mlp.down.weight, "input_layernorm": layer.attention_norm.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
        }.items():  # fmt: skip
            theirs[f"layers.{i}.{name}.weight"] = tensor
    loaded = Backbone(config).double()
    loaded.load_state_dict(from_huggingface(theirs, config))
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    assert torch.equal(loaded.whole(x), network.whole(x))
    del theirs["layers.1.mlp.up_proj.weight"]
    with pytest.raises(KeyError, match=r"layers\.1\.mlp\.up_proj"):
        from_huggingface(theirs, config)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        BackboneConfig(**{**SIZES, "kv_heads": 3})


def test_a_ring_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="ring cache needs a window"):
        make("llama").slot_cache(2, 8, ring=True)


def test_slot_bytes_of_a_cache() -> None:
    network = make("window").float()
    assert network.slot_cache(3, 24).slot_bytes() == 4 * 2 * 2 * 24 * 2 * 6
    assert network.slot_cache(3, 24, ring=True).slot_bytes() == 4 * 2 * 2 * 4 * 2 * 6

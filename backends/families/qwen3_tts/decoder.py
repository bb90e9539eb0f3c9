"""The codec's decoder network: codes to waveform, causal, from slot state.

Split RVQ, convolution, sliding-window transformer, two ConvNeXt upsamplings, Snake decoder; as
`Qwen3TTSTokenizerV2Decoder` of qwen-tts 0.1.1. The quantiser is linear after its lookup, so each codebook is
one table of finished vectors.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from backends.families.qwen3_tts.config import DecoderConfig
from backends.families.qwen3_tts.weights import Tensors, under
from backends.layers.backbone import BackboneConfig, StreamingTransformer, from_huggingface
from backends.layers.conv import CausalConv1d, CausalTransposedConv1d
from backends.layers.convnext import CausalConvNeXt
from backends.layers.rope import RopeConfig
from backends.layers.snake import SnakeBeta
from backends.layers.state import SlotCall

_DILATIONS = (1, 3, 9)
_SMALLEST_USAGE = 1e-5


def _transformer(config: DecoderConfig) -> BackboneConfig:
    return BackboneConfig(
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        eps=config.norm_eps,
        rope=RopeConfig(theta=config.rope_theta),
        layer_scale=True,
        window=config.window,
    )


class LatentUpsampling(nn.Module):
    """Transposed convolution without overlap, then a ConvNeXt block."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.up = CausalTransposedConv1d(width, width, ratio, ratio)
        self.convnext = CausalConvNeXt(width)

    def forward(self, x: torch.Tensor, call: SlotCall | None) -> torch.Tensor:
        return self.convnext(self.up(x, call), call)


class ResidualUnit(nn.Module):
    """x + conv1(snake(conv7(snake(x)))), the first one dilated."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(width)
        self.conv1 = CausalConv1d(width, width, 7, dilation=dilation)
        self.act2 = SnakeBeta(width)
        self.conv2 = CausalConv1d(width, width, 1)

    def forward(self, x: torch.Tensor, call: SlotCall | None) -> torch.Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x), call)), call)


class UpsamplingBlock(nn.Module):
    """Snake, transposed convolution by `rate`, three residual units; half the width comes out."""

    def __init__(self, width: int, rate: int) -> None:
        super().__init__()
        self.act = SnakeBeta(width)
        self.up = CausalTransposedConv1d(width, width // 2, 2 * rate, rate)
        self.units = nn.ModuleList(ResidualUnit(width // 2, d) for d in _DILATIONS)

    def forward(self, x: torch.Tensor, call: SlotCall | None) -> torch.Tensor:
        x = self.up(self.act(x), call)
        for unit in self.units:
            x = unit(x, call)
        return x


class Decoder(nn.Module):
    """codes int64 [B, T, codebooks] to waveform [B, 1, T * samples_per_frame] in -1..1."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        latent = config.latent
        self.codewords = nn.Parameter(
            torch.empty(config.codebooks * config.codebook_size, config.codebook_dim)
        )
        self.offsets: torch.Tensor
        self.register_buffer(
            "offsets", torch.arange(config.codebooks) * config.codebook_size, persistent=False
        )
        self.pre_conv = CausalConv1d(config.codebook_dim, latent, 3)
        self.input_proj = nn.Linear(latent, config.hidden)
        self.transformer = StreamingTransformer(_transformer(config))
        self.output_proj = nn.Linear(config.hidden, latent)
        self.upsample = nn.ModuleList(LatentUpsampling(latent, ratio) for ratio in config.ratios)
        self.first = CausalConv1d(latent, config.width, 7)
        self.blocks = nn.ModuleList(
            UpsamplingBlock(config.width >> i, rate) for i, rate in enumerate(config.rates)
        )
        width = config.width >> len(config.rates)
        self.act = SnakeBeta(width)
        self.last = CausalConv1d(width, 1, 7)

    def forward(self, codes: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        batch, count, books = codes.shape
        x = F.embedding_bag((codes + self.offsets).view(-1, books), self.codewords, mode="sum")
        x = self.pre_conv(x.view(batch, count, -1).transpose(1, 2), call).transpose(1, 2)
        x = self.output_proj(self.transformer(self.input_proj(x), call)).transpose(1, 2)
        for stage in self.upsample:
            x = stage(x, call)
        x = self.first(x, call)
        for block in self.blocks:
            x = block(x, call)
        return self.last(self.act(x), call).clamp(-1, 1)


def decoder_state(config: DecoderConfig, tensors: Tensors) -> Tensors:
    """Published weights (float32, without the prefix `decoder.`) under the names of `Decoder`."""
    state: Tensors = {}

    def take(target: str, source: str) -> None:
        found = under(tensors, f"{source}.")
        state.update({f"{target}.{name}": value for name, value in found.items()})

    tables = []
    for part, books in (("rvq_first", 1), ("rvq_rest", config.codebooks - 1)):
        quantizer = under(tensors, f"quantizer.{part}.")
        projection = quantizer["output_proj.weight"][:, :, 0]
        for i in range(books):
            usage = quantizer[f"vq.layers.{i}._codebook.cluster_usage"].clamp(min=_SMALLEST_USAGE)
            words = quantizer[f"vq.layers.{i}._codebook.embedding_sum"] / usage[:, None]
            tables.append(words @ projection.T)
    state["codewords"] = torch.cat(tables)

    take("pre_conv.conv", "pre_conv.conv")
    transformer = under(tensors, "pre_transformer.")
    for name in ("input_proj", "output_proj"):
        take(name, f"pre_transformer.{name}")
    for name, value in from_huggingface(transformer, _transformer(config)).items():
        state[f"transformer.backbone.{name}"] = value
    for i in range(config.layers):
        layer = f"transformer.backbone.layers.{i}"
        state[f"{layer}.attention_scale"] = transformer[f"layers.{i}.self_attn_layer_scale.scale"]
        state[f"{layer}.mlp_scale"] = transformer[f"layers.{i}.mlp_layer_scale.scale"]
    for i in range(len(config.ratios)):
        source, target = f"upsample.{i}.1", f"upsample.{i}.convnext"
        take(f"upsample.{i}.up.conv", f"upsample.{i}.0.conv")
        take(f"{target}.depthwise.conv", f"{source}.dwconv.conv")
        take(f"{target}.norm", f"{source}.norm")
        take(f"{target}.expand", f"{source}.pwconv1")
        take(f"{target}.shrink", f"{source}.pwconv2")
        state[f"{target}.gamma"] = tensors[f"{source}.gamma"]
    take("first.conv", "decoder.0.conv")
    for i in range(len(config.rates)):
        block = f"decoder.{i + 1}.block"
        take(f"blocks.{i}.act", f"{block}.0")
        take(f"blocks.{i}.up.conv", f"{block}.1.conv")
        for unit in range(len(_DILATIONS)):
            for name in ("act1", "act2"):
                take(f"blocks.{i}.units.{unit}.{name}", f"{block}.{unit + 2}.{name}")
            for name in ("conv1", "conv2"):
                take(f"blocks.{i}.units.{unit}.{name}.conv", f"{block}.{unit + 2}.{name}.conv")
    take("act", f"decoder.{len(config.rates) + 1}")
    take("last.conv", f"decoder.{len(config.rates) + 2}.conv")
    return state

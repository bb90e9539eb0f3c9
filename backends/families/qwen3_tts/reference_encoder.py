"""Codes of a reference recording: the encoder half of Mimi, whole utterances at a time.

Defossez et al., "Moshi: a speech-text foundation model for real-time dialogue", 2024; weights laid out as in
MimiModel of transformers. Attention looks at the whole past: the reference package ran on transformers 4.57,
which ignores the `sliding_window` of the config, and the published codes were made so.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from backends.families.qwen3_tts.config import EncoderConfig
from backends.families.qwen3_tts.weights import Tensors, under
from backends.layers.backbone import Backbone, BackboneConfig
from backends.layers.rope import RopeConfig


def _transformer(config: EncoderConfig, tensors: Tensors) -> Backbone:
    sizes = BackboneConfig(
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        norm="layer",
        eps=config.norm_eps,
        rope=RopeConfig(theta=config.rope_theta),
        mlp="gelu",
        layer_scale=True,
        final_norm=False,
    )
    state: Tensors = {}
    for i in range(config.layers):
        layer = f"layers.{i}"
        qkv = [tensors[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"]
        state[f"{layer}.attention.qkv.weight"] = torch.cat(qkv)
        state[f"{layer}.attention.output.weight"] = tensors[f"{layer}.self_attn.o_proj.weight"]
        state[f"{layer}.mlp.up.weight"] = tensors[f"{layer}.mlp.fc1.weight"]
        state[f"{layer}.mlp.down.weight"] = tensors[f"{layer}.mlp.fc2.weight"]
        state[f"{layer}.attention_scale"] = tensors[f"{layer}.self_attn_layer_scale.scale"]
        state[f"{layer}.mlp_scale"] = tensors[f"{layer}.mlp_layer_scale.scale"]
        for kind in ("weight", "bias"):
            state[f"{layer}.attention_norm.{kind}"] = tensors[f"{layer}.input_layernorm.{kind}"]
            state[f"{layer}.mlp_norm.{kind}"] = tensors[f"{layer}.post_attention_layernorm.{kind}"]
    backbone = Backbone(sizes).to(next(iter(state.values())).device)
    backbone.load_state_dict(state)
    return backbone.eval().requires_grad_(False)


class ReferenceEncoder:
    """tensors: weights without the prefix `encoder.`, float32."""

    def __init__(self, config: EncoderConfig, tensors: Tensors) -> None:
        self.config = config
        self._weights = tensors
        self._device = tensors["downsample.conv.weight"].device
        self._codebooks = {
            name.removesuffix(".embed_sum"): total
            / tensors[f"{name.removesuffix('.embed_sum')}.cluster_usage"].clamp(min=1e-5)[:, None]
            for name, total in tensors.items()
            if name.endswith(".embed_sum")
        }
        self._transformer = _transformer(config, under(tensors, "encoder_transformer."))

    def _conv(
        self, name: str, x: torch.Tensor, stride: int = 1, dilation: int = 1, mode: str = "constant"
    ) -> torch.Tensor:
        """Causal: all padding on the left, but for what completes the last stride."""
        weight = self._weights[f"{name}.conv.weight"]
        left = (weight.shape[2] - 1) * dilation + 1 - stride
        x = F.pad(x, (left, -x.shape[2] % stride), mode=mode)
        return F.conv1d(x, weight, self._weights.get(f"{name}.conv.bias"), stride=stride, dilation=dilation)

    def _convolutions(self, x: torch.Tensor) -> torch.Tensor:
        """[1, 1, samples] to [1, hidden, samples / product of ratios]."""
        config = self.config
        x = self._conv("encoder.layers.0", x)
        index = 1
        for ratio in reversed(config.ratios):
            for i in range(config.residual_layers):
                block = f"encoder.layers.{index}.block"
                inner = self._conv(f"{block}.1", F.elu(x), dilation=config.dilation_growth**i)
                x = x + self._conv(f"{block}.3", F.elu(inner))
                index += 1
            x = self._conv(f"encoder.layers.{index + 1}", F.elu(x), stride=ratio)
            index += 2
        return self._conv(f"encoder.layers.{index + 1}", F.elu(x))

    def _quantise(self, part: str, x: torch.Tensor, books: int) -> list[torch.Tensor]:
        """Nearest codeword, then the same on what is left, `books` times. x: [1, hidden, T]; results [T]."""
        name = f"quantizer.{part}_residual_vector_quantizer"
        projection = self._weights.get(f"{name}.input_proj.weight")
        residual = (x if projection is None else F.conv1d(x, projection))[0].T
        codes = []
        for i in range(books):
            codebook = self._codebooks[f"{name}.layers.{i}.codebook"]
            nearest = torch.cdist(residual, codebook).argmin(dim=1)
            residual = residual - codebook[nearest]
            codes.append(nearest)
        return codes

    def __call__(self, audio: torch.Tensor) -> torch.Tensor:
        """float32 [samples] at the codec's rate, to codes int64 [samples / samples_per_frame, valid], rounded
        up."""
        x = self._convolutions(audio.to(self._device)[None, None])
        x = self._transformer.whole(x.transpose(1, 2)).transpose(1, 2)
        x = self._conv("downsample", x, stride=2, mode="replicate")
        semantic = self.config.semantic
        codes = self._quantise("semantic", x, semantic)
        codes += self._quantise("acoustic", x, self.config.valid - semantic)
        return torch.stack(codes, dim=1)

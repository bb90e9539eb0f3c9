"""The talker's network: embeddings, backbone, head of code 0, code predictor."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from backends.families.qwen3_tts.config import TalkerConfig
from backends.families.qwen3_tts.predictor import CodePredictor, backbone_config
from backends.families.qwen3_tts.weights import Tensors, under
from backends.layers.backbone import Backbone, BackboneConfig, from_huggingface
from backends.layers.packed import pack_linear
from backends.layers.rope import Rope


class TalkerNetwork(nn.Module):
    """Also the `Embeddings` of prompts."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        hidden, text = config.backbone.hidden, config.text_hidden
        self.backbone = Backbone(backbone_config(config.backbone))
        self.predictor = CodePredictor(config)
        self.codec_embedding = nn.Embedding(config.codec_vocab, hidden)
        self.text_embedding = nn.Embedding(config.text_vocab, text)
        self.text_expand = nn.Linear(text, text)
        self.text_shrink = nn.Linear(text, hidden)
        self.head = nn.Linear(hidden, config.codec_vocab, bias=False)

    @property
    def device(self) -> torch.device:
        return self.codec_embedding.weight.device

    def embed_text(self, ids: torch.Tensor) -> torch.Tensor:
        return self.text_shrink(F.silu(self.text_expand(self.text_embedding(ids))))

    # What prompts are made of, from ids on the host.

    def text(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embed_text(ids.to(self.device))

    def codec(self, ids: torch.Tensor) -> torch.Tensor:
        return self.codec_embedding(ids.to(self.device))

    def frames(self, codes: torch.Tensor) -> torch.Tensor:
        codes = codes.to(self.device)
        return self.codec_embedding(codes[:, 0]) + self.predictor.frame_embedding(codes[:, 1:])


def _backbone(tensors: Tensors, config: BackboneConfig, target: str) -> Tensors:
    return {f"{target}.{name}": value for name, value in from_huggingface(tensors, config).items()}


def network_state(config: TalkerConfig, tensors: Tensors) -> Tensors:
    """Published weights (without the prefix `talker.`) under the names of `TalkerNetwork`."""
    books = range(config.codebooks - 1)
    predictor = under(tensors, "code_predictor.")
    state = {
        **_backbone(under(tensors, "model."), backbone_config(config.backbone), "backbone"),
        **_backbone(under(predictor, "model."), backbone_config(config.predictor), "predictor.backbone"),
        "codec_embedding.weight": tensors["model.codec_embedding.weight"],
        "text_embedding.weight": tensors["model.text_embedding.weight"],
        "head.weight": tensors["codec_head.weight"],
        "predictor.embeddings": torch.stack([predictor[f"model.codec_embedding.{i}.weight"] for i in books]),
        **{f"predictor.heads.{i}.weight": predictor[f"lm_head.{i}.weight"] for i in books},
    }
    for kind in ("weight", "bias"):
        state[f"text_expand.{kind}"] = tensors[f"text_projection.linear_fc1.{kind}"]
        state[f"text_shrink.{kind}"] = tensors[f"text_projection.linear_fc2.{kind}"]
        if config.projected:
            state[f"predictor.projection.{kind}"] = predictor[f"small_to_mtp_projection.{kind}"]
    return state


def make_network(config: TalkerConfig, tensors: Tensors) -> TalkerNetwork:
    """A network on the tensors' device and in their dtype, without initialising weights first.

    On a CPU large weights are packed, so that what a row makes does not depend on the rows beside it.
    """
    with torch.device("meta"):
        network = TalkerNetwork(config)
    network.load_state_dict(network_state(config, tensors), assign=True)
    # Rotary frequencies are no weights: made anew, since those above hold nothing.
    for backbone in (network.backbone, network.predictor.backbone):
        assert backbone.config.rope is not None
        backbone.rope = Rope(backbone.config.rope, backbone.config.head_dim)
    network.eval().requires_grad_(False)
    pack_linear(network)
    return network

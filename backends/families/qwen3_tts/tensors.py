"""Names and shapes of all tensors of a published checkpoint, derived from its configs.

One table for three uses: loading checks files against it, `make-random` writes files by it, tests compare it
with the reference package's state dict. Names are the published ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from backends.families.qwen3_tts.config import (
    DecoderConfig,
    EncoderConfig,
    SpeakerEncoderSizes,
    TalkerConfig,
    TransformerSizes,
)

Shapes = dict[str, tuple[int, ...]]


def _blocks(prefix: str, sizes: TransformerSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Qwen3 blocks and their final norm."""
    q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    for i in range(sizes.layers):
        layer = f"{prefix}layers.{i}."
        yield f"{layer}self_attn.q_proj.weight", (q, sizes.hidden)
        yield f"{layer}self_attn.k_proj.weight", (kv, sizes.hidden)
        yield f"{layer}self_attn.v_proj.weight", (kv, sizes.hidden)
        yield f"{layer}self_attn.o_proj.weight", (sizes.hidden, q)
        yield f"{layer}self_attn.q_norm.weight", (sizes.head_dim,)
        yield f"{layer}self_attn.k_norm.weight", (sizes.head_dim,)
        yield f"{layer}mlp.gate_proj.weight", (sizes.intermediate, sizes.hidden)
        yield f"{layer}mlp.up_proj.weight", (sizes.intermediate, sizes.hidden)
        yield f"{layer}mlp.down_proj.weight", (sizes.hidden, sizes.intermediate)
        yield f"{layer}input_layernorm.weight", (sizes.hidden,)
        yield f"{layer}post_attention_layernorm.weight", (sizes.hidden,)
    yield f"{prefix}norm.weight", (sizes.hidden,)


def talker_tensors(config: TalkerConfig) -> Shapes:
    """`model.safetensors`, prefix `talker.`."""
    hidden, text = config.backbone.hidden, config.text_hidden
    shapes: Shapes = dict(_blocks("talker.model.", config.backbone))
    shapes["talker.model.codec_embedding.weight"] = (config.codec_vocab, hidden)
    shapes["talker.model.text_embedding.weight"] = (config.text_vocab, text)
    shapes["talker.text_projection.linear_fc1.weight"] = (text, text)
    shapes["talker.text_projection.linear_fc1.bias"] = (text,)
    shapes["talker.text_projection.linear_fc2.weight"] = (hidden, text)
    shapes["talker.text_projection.linear_fc2.bias"] = (hidden,)
    shapes["talker.codec_head.weight"] = (config.codec_vocab, hidden)
    shapes.update(_blocks("talker.code_predictor.model.", config.predictor))
    for i in range(config.codebooks - 1):
        shapes[f"talker.code_predictor.model.codec_embedding.{i}.weight"] = (config.code_vocab, hidden)
        shapes[f"talker.code_predictor.lm_head.{i}.weight"] = (config.code_vocab, config.predictor.hidden)
    if config.projected:
        shapes["talker.code_predictor.small_to_mtp_projection.weight"] = (config.predictor.hidden, hidden)
        shapes["talker.code_predictor.small_to_mtp_projection.bias"] = (config.predictor.hidden,)
    return shapes


def speaker_encoder_tensors(sizes: SpeakerEncoderSizes) -> Shapes:
    """`model.safetensors`, prefix `speaker_encoder.`; only Base checkpoints have it."""
    shapes: Shapes = {}

    def conv(name: str, outputs: int, inputs: int, kernel: int) -> None:
        shapes[f"speaker_encoder.{name}.weight"] = (outputs, inputs, kernel)
        shapes[f"speaker_encoder.{name}.bias"] = (outputs,)

    channels = sizes.channels
    conv("blocks.0.conv", channels[0], sizes.mels, sizes.kernels[0])
    for i in range(1, len(channels) - 1):
        conv(f"blocks.{i}.tdnn1.conv", channels[i], channels[i - 1], 1)
        for j in range(sizes.scale - 1):
            part = channels[i] // sizes.scale
            conv(f"blocks.{i}.res2net_block.blocks.{j}.conv", part, part, sizes.kernels[i])
        conv(f"blocks.{i}.tdnn2.conv", channels[i], channels[i], 1)
        conv(f"blocks.{i}.se_block.conv1", sizes.squeeze, channels[i], 1)
        conv(f"blocks.{i}.se_block.conv2", channels[i], sizes.squeeze, 1)
    conv("mfa.conv", channels[-1], channels[-1], sizes.kernels[-1])
    conv("asp.tdnn.conv", sizes.attention, 3 * channels[-1], 1)
    conv("asp.conv", channels[-1], sizes.attention, 1)
    conv("fc", sizes.dim, 2 * channels[-1], 1)
    return shapes


def decoder_tensors(config: DecoderConfig) -> Shapes:
    """`speech_tokenizer/model.safetensors`, prefix `decoder.`."""
    shapes: Shapes = {}

    def conv(name: str, weight: tuple[int, ...], outputs: int) -> None:
        shapes[f"decoder.{name}.weight"] = weight
        shapes[f"decoder.{name}.bias"] = (outputs,)

    def snake(name: str, width: int) -> None:
        shapes[f"decoder.{name}.alpha"] = (width,)
        shapes[f"decoder.{name}.beta"] = (width,)

    half = config.codebook_dim // 2
    for part, books in (("rvq_first", 1), ("rvq_rest", config.codebooks - 1)):
        shapes[f"decoder.quantizer.{part}.input_proj.weight"] = (half, config.codebook_dim, 1)
        shapes[f"decoder.quantizer.{part}.output_proj.weight"] = (config.codebook_dim, half, 1)
        for i in range(books):
            book = f"decoder.quantizer.{part}.vq.layers.{i}._codebook."
            shapes[f"{book}cluster_usage"] = (config.codebook_size,)
            shapes[f"{book}embedding_sum"] = (config.codebook_size, half)

    latent, hidden = config.latent, config.hidden
    conv("pre_conv.conv", (latent, config.codebook_dim, 3), latent)
    conv("pre_transformer.input_proj", (hidden, latent), hidden)
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for i in range(config.layers):
        layer = f"decoder.pre_transformer.layers.{i}."
        shapes[f"{layer}self_attn.q_proj.weight"] = (q, hidden)
        shapes[f"{layer}self_attn.k_proj.weight"] = (kv, hidden)
        shapes[f"{layer}self_attn.v_proj.weight"] = (kv, hidden)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, q)
        shapes[f"{layer}mlp.gate_proj.weight"] = (config.intermediate, hidden)
        shapes[f"{layer}mlp.up_proj.weight"] = (config.intermediate, hidden)
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, config.intermediate)
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            shapes[f"{layer}{name}"] = (hidden,)
        for name in ("self_attn_layer_scale.scale", "mlp_layer_scale.scale"):
            shapes[f"{layer}{name}"] = (hidden,)
    shapes["decoder.pre_transformer.norm.weight"] = (hidden,)
    conv("pre_transformer.output_proj", (latent, hidden), latent)

    for i, ratio in enumerate(config.ratios):
        conv(f"upsample.{i}.0.conv", (latent, latent, ratio), latent)
        conv(f"upsample.{i}.1.dwconv.conv", (latent, 1, 7), latent)
        conv(f"upsample.{i}.1.norm", (latent,), latent)
        conv(f"upsample.{i}.1.pwconv1", (4 * latent, latent), 4 * latent)
        conv(f"upsample.{i}.1.pwconv2", (latent, 4 * latent), latent)
        shapes[f"decoder.upsample.{i}.1.gamma"] = (latent,)

    width = config.width
    conv("decoder.0.conv", (width, latent, 7), width)
    for i, rate in enumerate(config.rates, 1):
        block = f"decoder.{i}.block"
        snake(f"{block}.0", width)
        conv(f"{block}.1.conv", (width, width // 2, 2 * rate), width // 2)
        width //= 2
        for unit in (2, 3, 4):
            snake(f"{block}.{unit}.act1", width)
            conv(f"{block}.{unit}.conv1.conv", (width, width, 7), width)
            snake(f"{block}.{unit}.act2", width)
            conv(f"{block}.{unit}.conv2.conv", (width, width, 1), width)
    last = len(config.rates) + 1
    snake(f"decoder.{last}", width)
    conv(f"decoder.{last + 1}.conv", (1, width, 7), 1)
    return shapes


def encoder_tensors(config: EncoderConfig) -> Shapes:
    """`speech_tokenizer/model.safetensors`, prefix `encoder.` (Mimi's encoder half)."""
    shapes: Shapes = {}

    def conv(index: str, outputs: int, inputs: int, kernel: int) -> None:
        shapes[f"encoder.encoder.layers.{index}.conv.weight"] = (outputs, inputs, kernel)
        shapes[f"encoder.encoder.layers.{index}.conv.bias"] = (outputs,)

    width = config.filters
    conv("0", width, 1, config.kernel)
    index = 1
    for ratio in reversed(config.ratios):
        for _ in range(config.residual_layers):
            conv(f"{index}.block.1", width // config.compress, width, config.residual_kernel)
            conv(f"{index}.block.3", width, width // config.compress, 1)
            index += 1
        conv(f"{index + 1}", 2 * width, width, 2 * ratio)
        width *= 2
        index += 2
    conv(f"{index + 1}", config.hidden, width, config.last_kernel)

    hidden = config.hidden
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for i in range(config.layers):
        layer = f"encoder.encoder_transformer.layers.{i}."
        shapes[f"{layer}self_attn.q_proj.weight"] = (q, hidden)
        shapes[f"{layer}self_attn.k_proj.weight"] = (kv, hidden)
        shapes[f"{layer}self_attn.v_proj.weight"] = (kv, hidden)
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, q)
        shapes[f"{layer}mlp.fc1.weight"] = (config.intermediate, hidden)
        shapes[f"{layer}mlp.fc2.weight"] = (hidden, config.intermediate)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (hidden,)
            shapes[f"{layer}{name}.bias"] = (hidden,)
        for name in ("self_attn_layer_scale", "mlp_layer_scale"):
            shapes[f"{layer}{name}.scale"] = (hidden,)
    shapes["encoder.downsample.conv.weight"] = (hidden, hidden, 4)

    for part, books in (("semantic", config.semantic), ("acoustic", config.codebooks - config.semantic)):
        quantizer = f"encoder.quantizer.{part}_residual_vector_quantizer."
        if config.quantizer_hidden != hidden:
            shapes[f"{quantizer}input_proj.weight"] = (config.quantizer_hidden, hidden, 1)
            shapes[f"{quantizer}output_proj.weight"] = (hidden, config.quantizer_hidden, 1)
        for i in range(books):
            book = f"{quantizer}layers.{i}.codebook."
            shapes[f"{book}initialized"] = (1,)
            shapes[f"{book}cluster_usage"] = (config.codebook_size,)
            shapes[f"{book}embed_sum"] = (config.codebook_size, config.codebook_dim)
    return shapes


def count(shapes: Shapes) -> int:
    """Numbers in all tensors together."""
    return sum(prod(shape) for shape in shapes.values())

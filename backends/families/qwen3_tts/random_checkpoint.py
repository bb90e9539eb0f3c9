"""Checkpoint folders in the published layout with random weights, of the real size or tiny for tests.

Weights come from a counter-based generator of our own (splitmix64 of seed, tensor name and index), so the
same call writes the same bits with any version of numpy or torch. Scales are chosen so that every part of the
network matters (LayerScale and ConvNeXt gamma near 1, not at their initial 0.01 and 1e-6) and audio stays
inside -1..1.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from backends.families.qwen3_tts.config import STYLES, SpeechTokenizerConfig, TalkerConfig
from backends.families.qwen3_tts.tensors import (
    Shapes,
    decoder_tensors,
    encoder_tensors,
    speaker_encoder_tensors,
    talker_tensors,
)

SIZES = ("0.6b", "1.7b")

_LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
_DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
_SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
_SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

# Enough merges for some words to be several bytes long; "assistant" and "user" must be single tokens.
_WORDS = ("assistant", "user", " the", "the", "in", "on", "er", " s", " a", "ll", "st", " of", "ou", "ing")


def _transformer(
    *, hidden: int, intermediate: int, layers: int, heads: int, kv: int, dim: int
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "use_sliding_window": False,
        "max_position_embeddings": 32768,
    }


def model_config(size: str, style: str, tiny: bool = False) -> dict[str, Any]:
    """`config.json` of Qwen3-TTS-12Hz-0.6B or -1.7B, or of a model with the same structure and tiny sizes.

    In the published models the predictor is 1024 wide, as is the 0.6B backbone (so it has no projection); the
    1.7B backbone is 2048 wide and projects. The tiny pair differs likewise.
    """
    if tiny:
        wide = size == "1.7b"
        hidden = 64 if wide else 48
        talker = _transformer(hidden=hidden, intermediate=96, layers=2, heads=4, kv=2, dim=16)
        predictor = _transformer(hidden=48, intermediate=64, layers=2, heads=4, kv=2, dim=8)
        codes, text_vocab, text_hidden = 64, 352, 40
        speaker = {
            "mel_dim": 128,
            "enc_dim": hidden,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
            "sample_rate": 24000,
        }
        first_text_id = 320
    else:
        hidden = 2048 if size == "1.7b" else 1024
        talker = _transformer(hidden=hidden, intermediate=3 * hidden, layers=28, heads=16, kv=8, dim=128)
        predictor = _transformer(hidden=1024, intermediate=3072, layers=5, heads=16, kv=8, dim=128)
        codes, text_vocab, text_hidden = 2048, 151936, 2048
        speaker = {"enc_dim": hidden, "sample_rate": 24000}
        first_text_id = 151644

    def code(value: int) -> int:
        return value - 2048 + codes

    mrope = talker["head_dim"] // 2
    talker |= {
        "vocab_size": codes + 1024,
        "num_code_groups": 16,
        "text_hidden_size": text_hidden,
        "text_vocab_size": text_vocab,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [mrope - 2 * (mrope * 5 // 16), mrope * 5 // 16, mrope * 5 // 16],
            "rope_type": "default",
            "type": "default",
        },
        "codec_pad_id": code(2148),
        "codec_bos_id": code(2149),
        "codec_eos_token_id": code(2150),
        "codec_think_id": code(2154),
        "codec_nothink_id": code(2155),
        "codec_think_bos_id": code(2156),
        "codec_think_eos_id": code(2157),
        "codec_language_id": {
            name: code(value)
            for name, value in (_LANGUAGES | (_DIALECTS if style == "custom_voice" else {})).items()
        },
        "spk_id": {name: code(value) for name, value in _SPEAKERS.items()} if style == "custom_voice" else {},
        "spk_is_dialect": {name: _SPEAKER_DIALECTS.get(name, False) for name in _SPEAKERS}
        if style == "custom_voice"
        else {},
        "code_predictor_config": predictor
        | {
            "vocab_size": codes,
            "num_code_groups": 16,
            "layer_types": ["full_attention"] * predictor["num_hidden_layers"],
        },
    }
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "1b7" if size == "1.7b" else "0b6",
        "tts_model_type": style,
        "im_start_token_id": first_text_id,
        "im_end_token_id": first_text_id + 1,
        "tts_pad_token_id": first_text_id + 27,
        "tts_bos_token_id": first_text_id + 28,
        "tts_eos_token_id": first_text_id + 29,
        "talker_config": talker,
        "speaker_encoder_config": speaker,
    }


def speech_tokenizer_config(tiny: bool = False) -> dict[str, Any]:
    """`speech_tokenizer/config.json` of Qwen3-TTS-Tokenizer-12Hz, or of a tiny codec of the same rates."""
    decoder: dict[str, Any] = {
        "latent_dim": 1024,
        "codebook_dim": 512,
        "codebook_size": 2048,
        "decoder_dim": 1536,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "head_dim": 64,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 8,
        "sliding_window": 72,
    }
    encoder: dict[str, Any] = {
        "codebook_dim": 256,
        "codebook_size": 2048,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "head_dim": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_hidden_layers": 8,
        "num_filters": 64,
        "num_quantizers": 32,
        "upsample_groups": 512,
        "vector_quantization_hidden_dimension": 256,
        "sliding_window": 250,
    }
    if tiny:
        decoder |= {
            "latent_dim": 32,
            "codebook_dim": 32,
            "codebook_size": 64,
            "decoder_dim": 32,
            "hidden_size": 24,
            "intermediate_size": 48,
            "head_dim": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "sliding_window": 8,
        }
        encoder |= {
            "codebook_dim": 16,
            "codebook_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "head_dim": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "num_filters": 4,
            "num_quantizers": 20,
            "upsample_groups": 32,
            "vector_quantization_hidden_dimension": 16,
            "sliding_window": 6,
        }
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": decoder
        | {
            "attention_bias": False,
            "hidden_act": "silu",
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "num_quantizers": 16,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
        },
        "encoder_config": encoder
        | {
            "_frame_rate": 12.5,
            "audio_channels": 1,
            "compress": 2,
            "dilation_growth_rate": 2,
            "hidden_act": "gelu",
            "kernel_size": 7,
            "last_kernel_size": 3,
            "norm_eps": 1e-5,
            "num_residual_layers": 1,
            "num_semantic_quantizers": 1,
            "pad_mode": "constant",
            "residual_kernel_size": 3,
            "rope_theta": 10000.0,
            "sampling_rate": 24000,
            "trim_right_ratio": 1.0,
            "upsampling_ratios": [8, 6, 5, 4],
            "use_causal_conv": True,
            "use_conv_shortcut": False,
        },
    }


GENERATION_CONFIG = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "max_new_tokens": 8192,
}


def uniform(name: str, count: int, seed: int) -> np.ndarray:
    """float32 [count], uniform in [-1, 1) with 24 random bits: splitmix64 of (seed, name, index)."""
    key = np.uint64((zlib.crc32(name.encode()) << 32 | seed & 0xFFFFFFFF) & 0xFFFFFFFFFFFFFFFF)
    out = np.empty(count, np.float32)
    step = 1 << 20
    with np.errstate(over="ignore"):
        for begin in range(0, count, step):
            z = np.arange(begin + 1, min(begin + step, count) + 1, dtype=np.uint64)
            z *= np.uint64(0x9E3779B97F4A7C15)
            z += key
            z ^= z >> np.uint64(30)
            z *= np.uint64(0xBF58476D1CE4E5B9)
            z ^= z >> np.uint64(27)
            z *= np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
            out[begin : begin + step] = (z >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - 1
    return out


_LEAVES = {
    "initialized": (1.0, 0.0),
    "scale": (0.7, 0.3),
    "gamma": (0.7, 0.3),
    "cluster_usage": (1.2, 0.7),
    "alpha": (0.0, 0.3),
    "beta": (0.0, 0.3),
    "bias": (0.0, 0.05),
    "embedding_sum": (0.0, 1.0),
    "embed_sum": (0.0, 1.0),
}


def _range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """(centre, half width) of the uniform distribution that a tensor is drawn from."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf in _LEAVES:
        return _LEAVES[leaf]
    if "embedding" in name:
        return 0.0, 1.0
    if len(shape) == 1:
        return 1.0, 0.2
    fan = prod(shape[1:])
    if name.startswith("decoder."):
        if ".block.1.conv" in name:  # transposed, [in, out, 2 * stride]: two taps meet in each output sample
            fan = 2 * shape[0]
        elif name.startswith("decoder.upsample.") and ".0.conv" in name:  # transposed, kernel = stride
            fan = shape[0]
    gain = 1.0
    if ".conv2.conv." in name or ".block.3.conv." in name:  # ends of residual branches
        gain = 0.3
    if shape[0] == 1 and name.startswith("decoder.decoder."):  # the waveform itself
        gain = 0.05
    return 0.0, gain * (3.0 / fan) ** 0.5


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """float32 [shape]; depends on nothing but its arguments."""
    centre, half = _range(name, shape)
    values = uniform(name, prod(shape), seed)
    values *= np.float32(half)
    values += np.float32(centre)
    return torch.from_numpy(values.reshape(shape))


def _random_weights(shapes: Shapes, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: random_tensor(name, shape, seed).to(dtype) for name, shape in shapes.items()}


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as (GPT-2's table), in order of the byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(extra)) for b in range(256)]


def _merges(words: Iterable[str], alphabet: list[str]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for word in words:
        symbols = [alphabet[b] for b in word.encode()]
        left = symbols[0]
        for right in symbols[1:]:
            if (left, right) not in merges:
                merges.append((left, right))
            left += right
    return merges


def _write_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    alphabet = _byte_alphabet()
    merges = _merges(_WORDS, alphabet)
    tokens = list(dict.fromkeys([*alphabet, *(a + b for a, b in merges)]))
    # The added tokens' ids follow the vocabulary's without a gap, as in the published files.
    first = config["im_start_token_id"] - 1
    tokens += [f"<unused {i}>" for i in range(len(tokens), first)]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    specials = {i: f"<|reserved {i}|>" for i in range(first, config["tts_eos_token_id"] + 1)} | {
        first: "<|endoftext|>",
        config["im_start_token_id"]: "<|im_start|>",
        config["im_end_token_id"]: "<|im_end|>",
        config["tts_pad_token_id"]: "<tts_pad>",
        config["tts_bos_token_id"]: "<tts_text_bos>",
        config["tts_eos_token_id"]: "<tts_text_eod>",
    }
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_prefix_space": False,
            "added_tokens_decoder": {str(i): {"content": text, **flags} for i, text in specials.items()},
            "additional_special_tokens": list(specials.values())[1:],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "errors": "replace",
            "model_max_length": 131072,
            "split_special_tokens": False,
            "clean_up_tokenization_spaces": False,
        },
    )


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_random_checkpoint(
    folder: Path,
    size: str,
    style: str = "custom_voice",
    *,
    tiny: bool = False,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a checkpoint folder in the published layout.

    size: "0.6b" or "1.7b". style: "custom_voice", "voice_design" or "base". dtype: of the talker's weights,
    default bfloat16 as published (float32 if tiny); the codec's are float32. Raises ValueError on unknown
    names and FileExistsError if the folder exists and is not empty.
    """
    if size not in SIZES:
        raise ValueError(f"size is {size!r}; give one of {', '.join(SIZES)}")
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; give one of {', '.join(STYLES)}")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give a new folder")
    codec = folder / "speech_tokenizer"
    codec.mkdir()
    config = model_config(size, style, tiny)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", GENERATION_CONFIG)
    _write_json(codec / "config.json", speech_tokenizer_config(tiny))
    _write_json(
        codec / "preprocessor_config.json",
        {
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "sampling_rate": 24000,
            "chunk_length_s": None,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
        },
    )
    _write_tokenizer(folder, config)

    talker = TalkerConfig.load(folder / "config.json")
    speech = SpeechTokenizerConfig.load(codec / "config.json")
    shapes = talker_tensors(talker)
    if style == "base":
        shapes |= speaker_encoder_tensors(talker.speaker_encoder)
    talker_dtype = dtype or (torch.float32 if tiny else torch.bfloat16)
    save_file(_random_weights(shapes, seed, talker_dtype), folder / "model.safetensors", {"format": "pt"})
    shapes = decoder_tensors(speech.decoder) | encoder_tensors(speech.encoder)
    save_file(_random_weights(shapes, seed, torch.float32), codec / "model.safetensors", {"format": "pt"})

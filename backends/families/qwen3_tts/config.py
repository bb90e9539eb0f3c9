"""The sizes and special ids of a Qwen3-TTS 12 Hz checkpoint, read from its config files and checked once.

Sources: `config.json` and `speech_tokenizer/config.json` of the published folders (Qwen/Qwen3-TTS-12Hz-*),
whose keys and defaults are those of `configuration_qwen3_tts.py` and
`configuration_qwen3_tts_tokenizer_v2.py` in the package qwen-tts 0.1.1, and MimiConfig of transformers 4.57
for the reference encoder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from backends.voice import VoiceError

STYLES = ("custom_voice", "voice_design", "base")


class ConfigReader:
    """Typed access to one JSON object; errors name the file, the key and what would be right."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise VoiceError(f"{self.where}: {key} is missing; the checkpoint's config must state it")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
            raise VoiceError(f"{self.where}: {key} is {value!r}; it must be a non-negative integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise VoiceError(f"{self.where}: {key} is {value!r}; it must be a number")
        return float(value)

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or not all(type(v) is int and v > 0 for v in value):
            raise VoiceError(f"{self.where}: {key} is {value!r}; it must be a list of positive integers")
        return tuple(value)

    def object(self, key: str, default: Mapping[str, Any] | None = None) -> ConfigReader:
        value = self._get(key, default)
        if not isinstance(value, Mapping):
            raise VoiceError(f"{self.where}: {key} is {value!r}; it must be an object")
        return ConfigReader(value, f"{self.where}: {key}")

    def items(self) -> list[tuple[str, Any]]:
        return list(self._values.items())

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a setting that this implementation does not compute; a missing key means the first value."""
        value = self._values.get(key, allowed[0])
        if value not in allowed:
            raise VoiceError(
                f"{self.where}: {key} is {value!r}; only {' or '.join(map(repr, allowed))} is supported"
            )


def read_json(path: Path) -> ConfigReader:
    """Parse a JSON file that holds one object. Raises VoiceError if it is missing or malformed."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VoiceError(
            f"{path}: cannot be read ({error.strerror}); checkpoint must be the published folder"
        ) from error
    except json.JSONDecodeError as error:
        raise VoiceError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise VoiceError(f"{path}: holds {type(values).__name__}; it must be an object")
    return ConfigReader(values, str(path))


@dataclass(frozen=True)
class TransformerSizes:
    """A stack of Qwen3 blocks (talker or code predictor)."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float

    @classmethod
    def read(cls, source: ConfigReader) -> TransformerSizes:
        source.require("hidden_act", "silu")
        source.require("attention_bias", False)
        source.require("use_sliding_window", False)
        if source.raw("layer_types") is not None and set(source.raw("layer_types")) != {"full_attention"}:
            raise VoiceError(f"{source.where}: layer_types must all be full_attention")
        scaling = source.raw("rope_scaling")
        if scaling is not None:
            kind = scaling.get("rope_type", scaling.get("type", "default"))
            if kind != "default":
                raise VoiceError(
                    f"{source.where}: rope_scaling has type {kind!r}; only 'default' is supported"
                )
        hidden, heads = source.integer("hidden_size"), source.integer("num_attention_heads")
        return cls(
            hidden=hidden,
            intermediate=source.integer("intermediate_size"),
            layers=source.integer("num_hidden_layers"),
            heads=heads,
            kv_heads=source.integer("num_key_value_heads"),
            head_dim=source.integer("head_dim", hidden // heads),
            rope_theta=source.number("rope_theta", 10000.0),
            norm_eps=source.number("rms_norm_eps", 1e-6),
        )


@dataclass(frozen=True)
class SpeakerEncoderSizes:
    """The ECAPA-TDNN x-vector encoder of Base checkpoints. `dim` is the talker's hidden size."""

    mels: int
    dim: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    scale: int
    squeeze: int
    sample_rate: int

    @classmethod
    def read(cls, source: ConfigReader) -> SpeakerEncoderSizes:
        sizes = cls(
            mels=source.integer("mel_dim", 128),
            dim=source.integer("enc_dim", 1024),
            channels=source.integers("enc_channels", (512, 512, 512, 512, 1536)),
            kernels=source.integers("enc_kernel_sizes", (5, 3, 3, 3, 1)),
            dilations=source.integers("enc_dilations", (1, 2, 3, 4, 1)),
            attention=source.integer("enc_attention_channels", 128),
            scale=source.integer("enc_res2net_scale", 8),
            squeeze=source.integer("enc_se_channels", 128),
            sample_rate=source.integer("sample_rate", 24000),
        )
        if not len(sizes.channels) == len(sizes.kernels) == len(sizes.dilations):
            raise VoiceError(
                f"{source.where}: enc_channels, enc_kernel_sizes and enc_dilations differ in length"
            )
        return sizes


@dataclass(frozen=True)
class SpecialIds:
    """Ids that a prompt is built from: `text_*` in the text vocabulary, the others in the codec's."""

    im_start: int
    im_end: int
    text_pad: int
    text_bos: int
    text_eos: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class TalkerConfig:
    """What `config.json` says.

    style: "custom_voice", "voice_design" or "base". size: "0b6", "1b7" or whatever the checkpoint is called.
    speakers, languages: name in lower case -> codec id. dialects: speaker -> language that "auto" and
    "chinese" stand for when that speaker talks.
    """

    style: str
    size: str
    backbone: TransformerSizes
    predictor: TransformerSizes
    codec_vocab: int
    code_vocab: int
    codebooks: int
    text_vocab: int
    text_hidden: int
    ids: SpecialIds
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    languages: Mapping[str, int]
    speaker_encoder: SpeakerEncoderSizes

    @property
    def projected(self) -> bool:
        """Whether the predictor, being of another width than the backbone, starts with a projection."""
        return self.backbone.hidden != self.predictor.hidden

    @classmethod
    def load(cls, path: Path) -> TalkerConfig:
        top = read_json(path)
        top.require("model_type", "qwen3_tts")
        top.require("tokenizer_type", "qwen3_tts_tokenizer_12hz")
        style = top.raw("tts_model_type")
        if style not in STYLES:
            raise VoiceError(f"{path}: tts_model_type is {style!r}; it must be one of {', '.join(STYLES)}")
        talker = top.object("talker_config")
        predictor = talker.object("code_predictor_config")
        languages = {
            name.lower(): int(value) for name, value in talker.object("codec_language_id", {}).items()
        }
        dialects = {
            name.lower(): str(value).lower()
            for name, value in talker.object("spk_is_dialect", {}).items()
            if value
        }
        for speaker, dialect in dialects.items():
            if dialect not in languages:
                raise VoiceError(f"{path}: spk_is_dialect of {speaker} is {dialect!r}, which no language has")
        config = cls(
            style=style,
            size=str(top.raw("tts_model_size") or ""),
            backbone=TransformerSizes.read(talker),
            predictor=TransformerSizes.read(predictor),
            codec_vocab=talker.integer("vocab_size"),
            code_vocab=predictor.integer("vocab_size"),
            codebooks=talker.integer("num_code_groups"),
            text_vocab=talker.integer("text_vocab_size"),
            text_hidden=talker.integer("text_hidden_size"),
            ids=SpecialIds(
                im_start=top.integer("im_start_token_id", 151644),
                im_end=top.integer("im_end_token_id", 151645),
                text_pad=top.integer("tts_pad_token_id", 151671),
                text_bos=top.integer("tts_bos_token_id", 151672),
                text_eos=top.integer("tts_eos_token_id", 151673),
                codec_pad=talker.integer("codec_pad_id"),
                codec_bos=talker.integer("codec_bos_id"),
                codec_eos=talker.integer("codec_eos_token_id"),
                think=talker.integer("codec_think_id"),
                nothink=talker.integer("codec_nothink_id"),
                think_bos=talker.integer("codec_think_bos_id"),
                think_eos=talker.integer("codec_think_eos_id"),
            ),
            speakers={name.lower(): int(value) for name, value in talker.object("spk_id", {}).items()},
            dialects=dialects,
            languages=languages,
            speaker_encoder=SpeakerEncoderSizes.read(top.object("speaker_encoder_config", {})),
        )
        config._check(path)
        return config

    def _check(self, path: Path) -> None:
        codec_ids = {
            "codec_pad_id": self.ids.codec_pad,
            "codec_bos_id": self.ids.codec_bos,
            "codec_eos_token_id": self.ids.codec_eos,
            "codec_think_id": self.ids.think,
            "codec_nothink_id": self.ids.nothink,
            "codec_think_bos_id": self.ids.think_bos,
            "codec_think_eos_id": self.ids.think_eos,
            **{f"spk_id of {name}": value for name, value in self.speakers.items()},
            **{f"codec_language_id of {name}": value for name, value in self.languages.items()},
        }
        for name, value in codec_ids.items():
            if value >= self.codec_vocab:
                raise VoiceError(f"{path}: {name} is {value}; talker vocab_size is {self.codec_vocab}")
        text_ids = (
            self.ids.im_start,
            self.ids.im_end,
            self.ids.text_pad,
            self.ids.text_bos,
            self.ids.text_eos,
        )
        if max(text_ids) >= self.text_vocab:
            raise VoiceError(
                f"{path}: a text token id is {max(text_ids)}; text_vocab_size is {self.text_vocab}"
            )
        if self.style == "base" and self.speaker_encoder.dim != self.backbone.hidden:
            raise VoiceError(
                f"{path}: speaker_encoder_config enc_dim is {self.speaker_encoder.dim}; "
                f"it must equal the talker's hidden_size {self.backbone.hidden}"
            )


@dataclass(frozen=True)
class DecoderConfig:
    """The codec's decoder: split RVQ, sliding-window transformer, two ConvNeXt upsamplers, Snake decoder."""

    codebooks: int
    codebook_size: int
    codebook_dim: int
    latent: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    rope_theta: float
    norm_eps: float
    ratios: tuple[int, ...]
    rates: tuple[int, ...]
    width: int

    @property
    def samples_per_frame(self) -> int:
        return prod(self.ratios) * prod(self.rates)

    @classmethod
    def read(cls, source: ConfigReader) -> DecoderConfig:
        source.require("hidden_act", "silu")
        source.require("attention_bias", False)
        hidden, heads = source.integer("hidden_size", 1024), source.integer("num_attention_heads", 16)
        return cls(
            codebooks=source.integer("num_quantizers", 16),
            codebook_size=source.integer("codebook_size", 2048),
            codebook_dim=source.integer("codebook_dim"),
            latent=source.integer("latent_dim", 1024),
            hidden=hidden,
            intermediate=source.integer("intermediate_size", 3072),
            layers=source.integer("num_hidden_layers", 8),
            heads=heads,
            kv_heads=source.integer("num_key_value_heads", 16),
            head_dim=source.integer("head_dim", hidden // heads),
            window=source.integer("sliding_window", 72),
            rope_theta=source.number("rope_theta", 10000.0),
            norm_eps=source.number("rms_norm_eps", 1e-5),
            ratios=source.integers("upsampling_ratios", (2, 2)),
            rates=source.integers("upsample_rates", (8, 5, 4, 3)),
            width=source.integer("decoder_dim", 1536),
        )


@dataclass(frozen=True)
class EncoderConfig:
    """The reference encoder: Mimi's SEANet encoder, transformer, downsampling by 2 and split RVQ.

    codebooks: how many the checkpoint has (32); a reference uses the first `valid` (16) of them.
    """

    hidden: int
    filters: int
    residual_layers: int
    ratios: tuple[int, ...]
    kernel: int
    last_kernel: int
    residual_kernel: int
    dilation_growth: int
    compress: int
    codebook_size: int
    codebook_dim: int
    quantizer_hidden: int
    codebooks: int
    semantic: int
    valid: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    samples_per_frame: int

    @classmethod
    def read(cls, source: ConfigReader, top: ConfigReader) -> EncoderConfig:
        source.require("use_causal_conv", True)
        source.require("pad_mode", "constant")
        source.require("use_conv_shortcut", False)
        source.require("hidden_act", "gelu")
        source.require("attention_bias", False)
        source.require("audio_channels", 1)
        ratios = source.integers("upsampling_ratios", (8, 6, 5, 4))
        samples = top.integer("encode_downsample_rate", 1920)
        if samples != 2 * prod(ratios):
            raise VoiceError(
                f"{top.where}: encode_downsample_rate is {samples}; encoder_config makes {2 * prod(ratios)}"
            )
        hidden, heads = source.integer("hidden_size", 512), source.integer("num_attention_heads", 8)
        return cls(
            hidden=hidden,
            filters=source.integer("num_filters", 64),
            residual_layers=source.integer("num_residual_layers", 1),
            ratios=ratios,
            kernel=source.integer("kernel_size", 7),
            last_kernel=source.integer("last_kernel_size", 3),
            residual_kernel=source.integer("residual_kernel_size", 3),
            dilation_growth=source.integer("dilation_growth_rate", 2),
            compress=source.integer("compress", 2),
            codebook_size=source.integer("codebook_size", 2048),
            codebook_dim=source.integer("codebook_dim", 256),
            quantizer_hidden=source.integer("vector_quantization_hidden_dimension", 256),
            codebooks=source.integer("num_quantizers", 32),
            semantic=source.integer("num_semantic_quantizers", 1),
            valid=top.integer("encoder_valid_num_quantizers", 16),
            layers=source.integer("num_hidden_layers", 8),
            intermediate=source.integer("intermediate_size", 2048),
            heads=heads,
            kv_heads=source.integer("num_key_value_heads", 8),
            head_dim=source.integer("head_dim", hidden // heads),
            norm_eps=source.number("norm_eps", 1e-5),
            rope_theta=source.number("rope_theta", 10000.0),
            samples_per_frame=samples,
        )


@dataclass(frozen=True)
class SpeechTokenizerConfig:
    """What `speech_tokenizer/config.json` says. sample_rate: Hz, of both ends."""

    sample_rate: int
    decoder: DecoderConfig
    encoder: EncoderConfig

    @classmethod
    def load(cls, path: Path) -> SpeechTokenizerConfig:
        top = read_json(path)
        top.require("model_type", "qwen3_tts_tokenizer_12hz")
        rate = top.integer("output_sample_rate", 24000)
        top.require("input_sample_rate", rate)
        decoder = DecoderConfig.read(top.object("decoder_config"))
        if decoder.samples_per_frame != top.integer("decode_upsample_rate", 1920):
            raise VoiceError(
                f"{path}: decode_upsample_rate is {top.raw('decode_upsample_rate')}; upsampling_ratios and "
                f"upsample_rates make {decoder.samples_per_frame}"
            )
        encoder = EncoderConfig.read(top.object("encoder_config", {}), top)
        if encoder.valid != decoder.codebooks:
            raise VoiceError(
                f"{path}: encoder_valid_num_quantizers is {encoder.valid}, but the decoder has "
                f"{decoder.codebooks} codebooks"
            )
        return cls(sample_rate=rate, decoder=decoder, encoder=encoder)

"""From a checkpoint folder in the published layout to talker and codec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from backends.families.qwen3_tts.codec import Qwen3Codec
from backends.families.qwen3_tts.config import ConfigReader, SpeechTokenizerConfig, TalkerConfig
from backends.families.qwen3_tts.decoder import Decoder, decoder_state
from backends.families.qwen3_tts.network import make_network
from backends.families.qwen3_tts.options import Options
from backends.families.qwen3_tts.prompts import PromptBuilder
from backends.families.qwen3_tts.reference_encoder import ReferenceEncoder
from backends.families.qwen3_tts.reference_voice import ReferenceReader
from backends.families.qwen3_tts.speaker_encoder import SpeakerEncoder
from backends.families.qwen3_tts.talker import RESERVED_CODES, PublishedDefaults, Qwen3Talker
from backends.families.qwen3_tts.tensors import (
    decoder_tensors,
    encoder_tensors,
    speaker_encoder_tensors,
    talker_tensors,
)
from backends.families.qwen3_tts.tokenizer import TextTokenizer
from backends.families.qwen3_tts.weights import read_tensors, under
from backends.frames import FrameSpec
from backends.talker import SamplingParameters
from backends.voice import VoiceConfig, VoiceError


def _spec(config: SpeechTokenizerConfig) -> FrameSpec:
    decoder = config.decoder
    return FrameSpec(
        kind="codes",
        width=decoder.codebooks,
        sizes=(decoder.codebook_size,) * decoder.codebooks,
        sample_rate=config.sample_rate,
        channels=1,
        samples_per_frame=decoder.samples_per_frame,
    )


def _published(folder: Path) -> PublishedDefaults:
    """`generation_config.json`; a folder without one gets the package's own defaults."""
    path = folder / "generation_config.json"
    values: Mapping[str, Any] = {}
    if path.is_file():
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise VoiceError(f"{path}: is not valid JSON: {error}") from error
    reader = ConfigReader(values, str(path))
    greedy = values.get("do_sample") is False
    predictor_greedy = values.get("subtalker_dosample") is False
    return PublishedDefaults(
        sampling=SamplingParameters(
            temperature=0.0 if greedy else reader.number("temperature", 0.9),
            top_k=reader.integer("top_k", 50),
            top_p=reader.number("top_p", 1.0),
            repetition_penalty=reader.number("repetition_penalty", 1.05),
        ),
        predictor_temperature=0.0 if predictor_greedy else reader.number("subtalker_temperature", 0.9),
        predictor_top_k=reader.integer("subtalker_top_k", 50),
        predictor_top_p=reader.number("subtalker_top_p", 1.0),
        max_frames=reader.integer("max_new_tokens", 2048),
    )


def _configs(folder: Path) -> tuple[TalkerConfig, SpeechTokenizerConfig]:
    if not folder.is_dir():
        raise VoiceError(
            f"checkpoint {folder} is not a folder; download a Qwen3-TTS 12 Hz model there "
            "(docs/qwen3-tts.md) or write one with random weights: ./tritone make-random"
        )
    talker = TalkerConfig.load(folder / "config.json")
    speech = SpeechTokenizerConfig.load(folder / "speech_tokenizer" / "config.json")
    size = speech.decoder.codebook_size
    if not talker.codec_vocab - RESERVED_CODES == talker.code_vocab == size:
        raise VoiceError(
            f"{folder}: talker vocab_size {talker.codec_vocab} less {RESERVED_CODES}, predictor vocab_size "
            f"{talker.code_vocab} and the codec's codebook_size {size} must be equal"
        )
    if talker.codebooks != speech.decoder.codebooks:
        raise VoiceError(
            f"{folder}: num_code_groups is {talker.codebooks}, but the codec has "
            f"{speech.decoder.codebooks} codebooks"
        )
    return talker, speech


def _references(
    folder: Path, talker: TalkerConfig, speech: SpeechTokenizerConfig, options: Options
) -> ReferenceReader:
    device = options.talker_device
    speaker = read_tensors(
        folder, speaker_encoder_tensors(talker.speaker_encoder), ("talker.",), device=device
    )
    encoder = read_tensors(
        folder / "speech_tokenizer", encoder_tensors(speech.encoder), ("decoder.",), device=device
    )
    return ReferenceReader(
        SpeakerEncoder(talker.speaker_encoder, under(speaker, "speaker_encoder.")),
        ReferenceEncoder(speech.encoder, under(encoder, "encoder.")),
        options.reference_cache,
    )


def load_talker(voice: VoiceConfig, device: torch.device) -> Qwen3Talker:
    """Raises VoiceError naming file, key or tensor."""
    options = Options.read(voice, device)
    folder = voice.checkpoint
    config, speech = _configs(folder)
    tokenizer = TextTokenizer(folder)
    tensors = read_tensors(
        folder, talker_tensors(config), ("speaker_encoder.",), options.dtype, options.talker_device
    )
    network = make_network(config, under(tensors, "talker."))
    del tensors
    published = _published(folder)
    base = config.style == "base"
    prompts = PromptBuilder(
        config=config,
        tokenizer=tokenizer,
        embeddings=network,
        references=_references(folder, config, speech, options) if base else None,
        defaults=options.defaults(voice, config),
        whole=options.text_layout == "whole" or (options.text_layout == "auto" and not base),
        open_frames=published.max_frames,
    )
    return Qwen3Talker(
        config=config,
        network=network,
        tokenizer=tokenizer,
        prompts=prompts,
        spec=_spec(speech),
        published=published,
    )


def load_codec(voice: VoiceConfig, device: torch.device) -> Qwen3Codec:
    """Raises VoiceError naming file, key or tensor."""
    options = Options.read(voice, device)
    _, speech = _configs(voice.checkpoint)
    tensors = read_tensors(
        voice.checkpoint / "speech_tokenizer",
        decoder_tensors(speech.decoder),
        ("encoder.",),
        device=options.codec_device,
    )
    decoder = Decoder(speech.decoder).to(options.codec_device)
    decoder.load_state_dict(decoder_state(speech.decoder, under(tensors, "decoder.")))
    return Qwen3Codec(decoder.to(options.codec_dtype), _spec(speech))

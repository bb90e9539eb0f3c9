"""The keys under `options:` in the YAML of a Qwen3-TTS voice, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from backends.families.qwen3_tts.config import TalkerConfig
from backends.families.qwen3_tts.prompts import PromptDefaults
from backends.families.qwen3_tts.reference_voice import Reference, read_wav
from backends.voice import VoiceConfig, VoiceError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LAYOUTS = ("auto", "whole", "per_frame")


@dataclass(frozen=True)
class Options:
    """How a checkpoint is run.

    dtype: of talker weights and cache. codec_dtype: of the decoder and its state.
    text_layout: "whole" puts the text of a piece into the prompt, "per_frame" feeds one token a frame, "auto"
        does as the published package: whole for named and designed voices, per frame for cloned ones. Text
        that is left open (op=append) is always fed.
    talker_device, codec_device: where they run, if not on the server's device.
    reference_cache: cloned voices whose codes and x-vector are kept.
    speaker, language, instructions, reference_text, reference_wav (a file beside the YAML): what is taken
        where a request does not say.
    """

    dtype: torch.dtype
    codec_dtype: torch.dtype
    text_layout: str
    talker_device: torch.device
    codec_device: torch.device
    reference_cache: int
    speaker: str | None
    language: str
    instructions: str | None
    reference_wav: str | None
    reference_text: str | None

    @classmethod
    def read(cls, voice: VoiceConfig, device: torch.device) -> Options:
        """Raises VoiceError naming file, key and value."""
        where = f"{voice.source}: options"
        values = dict(voice.options)
        talker_device = _device(values, "talker_device", device, where)
        codec_device = _device(values, "codec_device", device, where)
        on_gpu = talker_device.type == "cuda"
        options = cls(
            dtype=_DTYPES[_choice(values, "dtype", "bfloat16" if on_gpu else "float32", _DTYPES, where)],
            codec_dtype=_DTYPES[_choice(values, "codec_dtype", "float32", _DTYPES, where)],
            text_layout=_choice(values, "text_layout", "auto", _LAYOUTS, where),
            talker_device=talker_device,
            codec_device=codec_device,
            reference_cache=values.pop("reference_cache", 64),
            speaker=_text(values, "speaker", where),
            language=_text(values, "language", where) or "auto",
            instructions=_text(values, "instructions", where),
            reference_wav=_text(values, "reference_wav", where),
            reference_text=_text(values, "reference_text", where),
        )
        if type(options.reference_cache) is not int or options.reference_cache < 0:
            raise VoiceError(
                f"{where}: reference_cache is {options.reference_cache!r}; give an integer from 0"
            )
        if values:
            known = ", ".join(field.name for field in fields(cls))
            raise VoiceError(f"{where}: unknown key {next(iter(values))!r}; known keys are {known}")
        return options

    def defaults(self, voice: VoiceConfig, config: TalkerConfig) -> PromptDefaults:
        """Raises VoiceError if the checkpoint cannot do what the YAML says."""
        where = f"{voice.source}: options"
        speaker = self.speaker.lower() if self.speaker else None
        if speaker is not None and speaker not in config.speakers:
            known = ", ".join(config.speakers) or "none"
            raise VoiceError(f"{where}: speaker is {self.speaker!r}; the checkpoint has {known}")
        if self.language.lower() not in ("auto", *config.languages):
            raise VoiceError(
                f"{where}: language is {self.language!r}; the checkpoint has {', '.join(config.languages)}"
            )
        if self.instructions and config.style == "base":
            raise VoiceError(
                f"{where}: instructions are not for checkpoints that clone voices; leave them out"
            )
        reference = None
        if self.reference_wav is not None:
            if config.style != "base":
                raise VoiceError(f"{where}: reference_wav is for Base checkpoints; leave it out")
            audio, rate = read_wav(voice.source.parent / self.reference_wav)
            reference = Reference(audio, rate, self.reference_text)
        elif self.reference_text is not None:
            raise VoiceError(f"{where}: reference_text needs reference_wav; give both or neither")
        return PromptDefaults(speaker, self.language, self.instructions, reference)


def _text(values: dict[str, Any], key: str, where: str) -> str | None:
    value = values.pop(key, None)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise VoiceError(f"{where}: {key} is {value!r}; give a non-empty string")
    return value


def _choice(
    values: dict[str, Any], key: str, default: str, known: Mapping[str, Any] | tuple[str, ...], where: str
) -> str:
    value = values.pop(key, default)
    if value not in known:
        raise VoiceError(f"{where}: {key} is {value!r}; give one of {', '.join(known)}")
    return value


def _device(values: dict[str, Any], key: str, default: torch.device, where: str) -> torch.device:
    value = values.pop(key, None)
    if value is None:
        return default
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise VoiceError(f"{where}: {key} is {value!r}; give cpu, cuda or cuda:<index>") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise VoiceError(f"{where}: {key} is {value!r}, but torch sees no CUDA device; give cpu")
    return device

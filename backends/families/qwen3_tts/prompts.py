"""Prompts of the three kinds of checkpoint, as embeddings, in the layouts of the reference package.

A position is the sum of a text side and a codec side. After the prompt each frame's codes are the codec side
and one further text token the text side:

    text    role ids   pad pad ... bos        first token   next tokens .. end of text, pad, pad ..
    codec              language .. speaker    codec bos     the frames made

Source: `Qwen3TTSForConditionalGeneration.generate` and `generate_icl_prompt` of qwen-tts 0.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from backends.families.qwen3_tts.config import TalkerConfig
from backends.families.qwen3_tts.reference_voice import Reference, ReferenceReader
from backends.families.qwen3_tts.tokenizer import TextTokenizer
from backends.talker import NothingToSpeakError, Prompt, SpeechRequest

# A guard against a talker that never ends: speech takes about 3 frames a token, slow speech perhaps 6.
_FRAMES_PER_TOKEN = 12
_SPARE_FRAMES = 75

_LANGUAGE_CODES = {
    "zh": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}


class Embeddings(Protocol):
    """The talker's input embeddings; results [n, hidden] in its dtype, on its device."""

    def text(self, ids: torch.Tensor) -> torch.Tensor:
        """Projected text embeddings of ids [n]."""

    def codec(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of codebook 0 and of the codec's special ids [n]."""

    def frames(self, codes: torch.Tensor) -> torch.Tensor:
        """Sums of the embeddings of whole frames [n, codebooks]."""


@dataclass(frozen=True)
class PromptDefaults:
    """What a voice says where a request does not. `speaker` in lower case."""

    speaker: str | None
    language: str
    instructions: str | None
    reference: Reference | None


class PromptBuilder:
    """Builds prompts.

    references: None unless the checkpoint clones voices. whole: whether the text of a piece goes into the
    prompt; text that is left open is fed anyway. open_frames: budget of a stream whose text is left open.
    """

    def __init__(
        self,
        *,
        config: TalkerConfig,
        tokenizer: TextTokenizer,
        embeddings: Embeddings,
        references: ReferenceReader | None,
        defaults: PromptDefaults,
        whole: bool,
        open_frames: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._embed = embeddings
        self._references = references
        self._defaults = defaults
        self._whole = whole
        self._open_frames = open_frames
        self._role = [config.ids.im_start, *tokenizer.encode("assistant\n")]
        self.languages = ("auto", *(name for name in config.languages if "dialect" not in name))

    # What a request may ask for.

    def _speaker(self, request: SpeechRequest) -> str | None:
        if self._config.style != "custom_voice":
            return None
        return (request.speaker or self._defaults.speaker or next(iter(self._config.speakers))).lower()

    def _instructions(self, request: SpeechRequest) -> str | None:
        style, size = self._config.style, self._config.size
        asked = request.instructions
        if asked and style == "base":
            raise ValueError("instructions were given, but this checkpoint clones voices; leave them out")
        if asked and style == "custom_voice" and size == "0b6":
            raise ValueError(
                "instructions were given, but the 0.6B model has not learnt any; leave them out or use 1.7B"
            )
        return (asked if asked is not None else self._defaults.instructions) or None

    def _reference(self, request: SpeechRequest) -> Reference | None:
        if self._references is None:
            if request.reference_audio is not None or request.reference_text is not None:
                raise ValueError(
                    "a reference was given, but this checkpoint does not clone; leave out reference_wav and "
                    "reference_text or use a Base checkpoint"
                )
            return None
        if request.reference_audio is not None:
            return Reference(request.reference_audio, request.reference_rate, request.reference_text)
        if request.reference_text is not None:
            raise ValueError(
                "reference_text was given without reference_wav; give both or only reference_wav"
            )
        if self._defaults.reference is None:
            raise ValueError(
                "this checkpoint clones voices: give reference_wav (about 3 to 10 s of one speaker), and "
                "reference_text, what is said in it, for a closer match"
            )
        return self._defaults.reference

    def _language(self, request: SpeechRequest, speaker: str | None) -> int | None:
        name = (request.language or self._defaults.language).lower()
        name = _LANGUAGE_CODES.get(name.replace("_", "-").split("-")[0], name)
        if name not in self.languages:
            raise ValueError(f"language is {name!r}; this voice speaks {', '.join(self.languages)}")
        if name in ("auto", "chinese") and speaker is not None and speaker in self._config.dialects:
            name = self._config.dialects[speaker]
        return None if name == "auto" else self._config.languages[name]

    # Pieces of prompts.

    def _text(self, ids: list[int]) -> torch.Tensor:
        return self._embed.text(torch.tensor(ids, dtype=torch.int64))

    def _codec(self, ids: list[int]) -> torch.Tensor:
        return self._embed.codec(torch.tensor(ids, dtype=torch.int64))

    def _head(self, language: int | None, speaker: int | None, x_vector: torch.Tensor | None) -> torch.Tensor:
        """Role, then language and speaker; the last codec position, codec bos, is not yet in it."""
        ids = self._config.ids
        if language is None:
            codec = self._codec([ids.nothink, ids.think_bos, ids.think_eos])
        else:
            codec = self._codec([ids.think, ids.think_bos, language, ids.think_eos])
        parts = [codec]
        if x_vector is not None:
            parts.append(x_vector.to(codec)[None])
        elif speaker is not None:
            parts.append(self._codec([speaker]))
        parts.append(self._codec([ids.codec_pad]))
        codec = torch.cat(parts)
        text = self._text([ids.text_pad] * (len(codec) - 1) + [ids.text_bos])
        return torch.cat([self._text(self._role), text + codec])

    def _text_over_codec(self, text: list[int], codec: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Pair text with codec positions one to one; the text left over is fed later."""
        pads = [self._config.ids.text_pad] * (len(codec) - len(text))
        return self._text(text[: len(codec)] + pads) + codec, text[len(codec) :]

    def _text_then_codec(self, text: list[int], codec: torch.Tensor) -> torch.Tensor:
        """All text over codec padding, then the codec positions over text padding."""
        ids = self._config.ids
        return torch.cat(
            [self._text(text) + self._codec([ids.codec_pad]), codec + self._text([ids.text_pad])]
        )

    # The prompt.

    def text_ready(self, request: SpeechRequest, text: str, first: bool) -> int:
        """See `Talker.text_ready`: whole words; in-context cloning starts with a token a reference frame."""
        ready = self._tokenizer.settled(text)
        reference = self._reference(request)
        if first and reference is not None and reference.text is not None:
            assert self._references is not None
            tokens = len(self._tokenizer.encode(reference.text)) + len(self._tokenizer.encode(text[:ready]))
            if tokens < self._references.frames(reference) + 1:
                return 0
        return ready

    def build(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        """Raises ValueError, fit for the user, if the request does not suit the checkpoint."""
        config, ids = self._config, self._config.ids
        speaker = self._speaker(request)
        instructions = self._instructions(request)
        reference = self._reference(request)
        language = self._language(request, speaker)
        if not any(letter.isalnum() for letter in text):
            # The model would make something up.
            raise NothingToSpeakError("there is no letter and no digit in it; give at least one word")
        tokens = self._tokenizer.encode(text.lstrip())
        voice = self._references.read(reference) if self._references and reference else None

        parts = []
        if instructions:
            words, newline = self._tokenizer.encode(f"user\n{instructions}"), self._tokenizer.encode("\n")
            parts.append(self._text([ids.im_start, *words, ids.im_end, *newline]))
        parts.append(
            self._head(
                language,
                None if speaker is None else config.speakers[speaker],
                None if voice is None else voice.x_vector,
            )
        )

        codec = self._codec([ids.codec_bos])
        spoken = tokens
        if voice is not None and voice.codes is not None:
            assert reference is not None and reference.text is not None
            spoken = self._tokenizer.encode(reference.text) + tokens
            codec = torch.cat([codec, self._embed.frames(voice.codes)])
        # An open text that is shorter than its reference got here because it has ended.
        is_open = request.text_open and len(spoken) >= len(codec)
        closed = spoken if is_open else [*spoken, ids.text_eos]
        if self._whole and not request.text_open:
            parts.append(self._text_then_codec(closed, codec))
            later: list[int] = []
        else:
            paired, later = self._text_over_codec(closed, codec)
            parts.append(paired)
        if not is_open and not later:
            # Fed first, a pad tells the talker that the end of the text is in the prompt.
            later = [ids.text_pad]
        return Prompt(
            inputs=torch.cat(parts).cpu(),
            text_ids=later,
            prefix_frames=voice.codes if voice is not None and first else None,
            max_frames=self._open_frames if is_open else _SPARE_FRAMES + _FRAMES_PER_TOKEN * len(tokens),
        )

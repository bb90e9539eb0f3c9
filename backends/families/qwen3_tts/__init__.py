"""Qwen3-TTS, 12 Hz: a Qwen3 backbone with a code predictor, and a causal codec of 16 codebooks at 24 kHz.

Qwen team, "Qwen3-TTS Technical Report", arXiv 2601.15621; weights under https://huggingface.co/Qwen. The
network is written anew on the project's layers and compared with the package qwen-tts 0.1.1
(tests/qwen3_tts). How to get and serve a checkpoint: docs/qwen3-tts.md.
"""

from __future__ import annotations

import torch

from backends.codec import Codec
from backends.families.qwen3_tts.loading import load_codec, load_talker
from backends.talker import Talker
from backends.voice import VoiceConfig


class Qwen3TTSFamily:
    """Implements `backends.family.Family`."""

    def load_talker(self, voice: VoiceConfig, device: torch.device) -> Talker:
        return load_talker(voice, device)

    def load_codec(self, voice: VoiceConfig, device: torch.device) -> Codec:
        return load_codec(voice, device)


FAMILY = Qwen3TTSFamily()

"""wren: a tiny autoregressive English voice for CPUs (talker 5.2 M parameters, codec decoder 2.6 M)."""

from __future__ import annotations

import torch

from backends.codec import Codec
from backends.families.wren.loading import load_codec, load_talker
from backends.talker import Talker
from backends.voice import VoiceConfig


class WrenFamily:
    """Implements `backends.family.Family`."""

    def load_talker(self, voice: VoiceConfig, device: torch.device) -> Talker:
        return load_talker(voice, device)

    def load_codec(self, voice: VoiceConfig, device: torch.device) -> Codec:
        return load_codec(voice, device)


FAMILY = WrenFamily()

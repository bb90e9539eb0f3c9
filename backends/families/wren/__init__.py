"""wren: a tiny autoregressive English voice (5.2 M parameter talker, 2.6 M parameter codec decoder) for CPUs."""

from __future__ import annotations

import torch

from backends.codec import Codec
from backends.families.wren.loading import load_codec
from backends.voice import VoiceConfig


class WrenFamily:
    """Implements `backends.family.Family`."""

    def load_codec(self, voice: VoiceConfig, device: torch.device) -> Codec:
        return load_codec(voice, device)


FAMILY = WrenFamily()

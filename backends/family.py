"""A model family: one module under backends/families with a `FAMILY` object, found by name."""

from __future__ import annotations

import importlib
from typing import Protocol

import torch

from backends.codec import Codec
from backends.talker import Talker
from backends.voice import VoiceConfig


class Family(Protocol):
    """What a family's module offers. Talker and codec are loaded by different processes."""

    def load_talker(self, voice: VoiceConfig, device: torch.device) -> Talker:
        """Load the talker's weights from `voice.checkpoint`; raises VoiceError naming what is wrong with it."""

    def load_codec(self, voice: VoiceConfig, device: torch.device) -> Codec:
        """Load the codec's weights from `voice.checkpoint`; raises VoiceError naming what is wrong with it."""


def load_family(name: str) -> Family:
    """The family of that name. Raises ModuleNotFoundError if backends/families has no such module."""
    family: Family = importlib.import_module(f"backends.families.{name}").FAMILY
    return family

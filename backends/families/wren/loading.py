"""From a voice's folder to its talker and codec."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.families.wren.codec import WrenCodec
from backends.families.wren.decoder import Decoder
from backends.families.wren.quantiser import Codebooks
from backends.families.wren.weights import VOICE_FILE, fill, read_tensors, under
from backends.voice import VoiceConfig

__all__ = ["load_codec"]


def _codebooks(path: Path, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    codebooks = Codebooks()
    fill(codebooks, under(tensors, "quantiser"), f"{path}: quantiser")
    return codebooks.codewords


def load_codec(voice: VoiceConfig, device: torch.device) -> WrenCodec:
    """Raises VoiceError if the file is missing or a tensor does not fit."""
    path = voice.checkpoint / VOICE_FILE
    tensors = read_tensors(path)
    decoder = Decoder()
    fill(decoder, under(tensors, "decoder"), f"{path}: decoder")
    return WrenCodec(_codebooks(path, tensors), decoder, device)

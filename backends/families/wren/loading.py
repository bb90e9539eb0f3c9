"""From a voice's folder to its talker and codec."""

from __future__ import annotations

from pathlib import Path

import torch

from backends.families.wren.codec import WrenCodec
from backends.families.wren.decoder import Decoder
from backends.families.wren.frontend import Frontend
from backends.families.wren.letter_to_sound import LetterToSound
from backends.families.wren.lexicon import Pronouncer, load_lexicon
from backends.families.wren.network import TalkerNetwork
from backends.families.wren.quantiser import Codebooks
from backends.families.wren.talker import WrenTalker
from backends.families.wren.weights import VOICE_FILE, fill, read_tensors, under
from backends.voice import VoiceConfig

LEXICON_FILE = "lexicon.tsv.gz"
RULES_FILE = "lts.txt.gz"


def load_frontend(folder: Path) -> Frontend:
    """Raises VoiceError if a table is missing or damaged."""
    return Frontend(Pronouncer(load_lexicon(folder / LEXICON_FILE), LetterToSound.load(folder / RULES_FILE)))


def load_talker(voice: VoiceConfig, device: torch.device) -> WrenTalker:
    """Raises VoiceError if a file is missing or a tensor does not fit."""
    path = voice.checkpoint / VOICE_FILE
    tensors = read_tensors(path)
    network = TalkerNetwork()
    fill(network, under(tensors, "talker"), f"{path}: talker")
    return WrenTalker(network, _codewords(path, tensors), load_frontend(voice.checkpoint), device)


def load_codec(voice: VoiceConfig, device: torch.device) -> WrenCodec:
    """Raises VoiceError if the file is missing or a tensor does not fit."""
    path = voice.checkpoint / VOICE_FILE
    tensors = read_tensors(path)
    decoder = Decoder()
    fill(decoder, under(tensors, "decoder"), f"{path}: decoder")
    return WrenCodec(_codewords(path, tensors), decoder, device)


def _codewords(path: Path, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    codebooks = Codebooks()
    fill(codebooks, under(tensors, "quantiser"), f"{path}: quantiser")
    return codebooks.codewords

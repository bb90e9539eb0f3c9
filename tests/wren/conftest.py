from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.families.wren.codec import WrenCodec
from backends.families.wren.frontend import Frontend
from backends.families.wren.loading import load_codec, load_frontend, load_talker
from backends.families.wren.network import TalkerNetwork
from backends.families.wren.talker import WrenTalker
from backends.families.wren.weights import VOICE_FILE, fill, read_tensors, under
from backends.voice import VoiceConfig, load_voice

ROOT = Path(__file__).parents[2]
SLOTS = 20


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def voice() -> VoiceConfig:
    return load_voice(ROOT / "voices" / "wren.yaml")


@pytest.fixture(scope="session")
def loaded_talker(voice: VoiceConfig) -> WrenTalker:
    return load_talker(voice, torch.device("cpu"))


@pytest.fixture
def talker(loaded_talker: WrenTalker, voice: VoiceConfig) -> WrenTalker:
    loaded_talker.allocate(SLOTS, voice.engine.max_length)
    return loaded_talker


@pytest.fixture(scope="session")
def network(voice: VoiceConfig) -> TalkerNetwork:
    """The talker's network as it was trained."""
    network = TalkerNetwork()
    fill(network, under(read_tensors(voice.checkpoint / VOICE_FILE), "talker"), "voice")
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def loaded_codec(voice: VoiceConfig) -> WrenCodec:
    return load_codec(voice, torch.device("cpu"))


@pytest.fixture
def codec(loaded_codec: WrenCodec) -> WrenCodec:
    loaded_codec.allocate(SLOTS)
    return loaded_codec


@pytest.fixture(scope="session")
def frontend(voice: VoiceConfig) -> Frontend:
    return load_frontend(voice.checkpoint)


@pytest.fixture(scope="session")
def reference() -> dict[str, np.ndarray]:
    """What the prototype makes of some sentences; see goldens/make.py."""
    with np.load(Path(__file__).parent / "goldens" / "reference.npz") as arrays:
        return dict(arrays)

"""A voice's files are checked when they are loaded, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.families.wren import FAMILY
from backends.families.wren.weights import VOICE_FILE
from backends.family import load_family
from backends.voice import VoiceConfig, VoiceError

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(voice: VoiceConfig, tmp_path: Path) -> VoiceConfig:
    """The voice with its files in a folder of their own."""
    for name in (VOICE_FILE, "lexicon.tsv.gz", "lts.txt.gz"):
        shutil.copy(voice.checkpoint / name, tmp_path)
    return dataclasses.replace(voice, checkpoint=tmp_path)


def change(copy: VoiceConfig, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(copy.checkpoint / VOICE_FILE)
    edit(tensors)
    save_file(tensors, copy.checkpoint / VOICE_FILE)


def test_the_family_is_found_by_name() -> None:
    assert load_family("wren") is FAMILY


def test_missing_unknown_and_misshapen_tensors_are_named(copy: VoiceConfig) -> None:
    def edit(tensors: Tensors) -> None:
        del tensors["decoder.head.bias"]
        tensors["decoder.tail.bias"] = torch.zeros(3)
        tensors["decoder.norm.weight"] = torch.zeros(7)

    change(copy, edit)
    with pytest.raises(VoiceError) as caught:
        FAMILY.load_codec(copy, CPU)
    for part in (
        f"{VOICE_FILE}: decoder",
        "head.bias is missing",
        "tail.bias is unknown",
        "norm.weight is [7], not [224]",
    ):
        assert part in str(caught.value)


def test_weights_that_are_not_finite_are_refused(copy: VoiceConfig) -> None:
    change(copy, lambda tensors: tensors["talker.step_input.begin"].fill_(torch.nan))
    with pytest.raises(VoiceError, match=r"talker: .*step_input.begin holds values that are not finite"):
        FAMILY.load_talker(copy, CPU)


def test_a_damaged_file_is_refused(copy: VoiceConfig) -> None:
    file = copy.checkpoint / VOICE_FILE
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(VoiceError, match="not a whole safetensors file"):
        FAMILY.load_codec(copy, CPU)


@pytest.mark.parametrize("name", [VOICE_FILE, "lexicon.tsv.gz", "lts.txt.gz"])
def test_a_missing_file_is_named(copy: VoiceConfig, name: str) -> None:
    (copy.checkpoint / name).unlink()
    with pytest.raises(VoiceError, match=name):
        FAMILY.load_talker(copy, CPU)


@pytest.mark.parametrize("name", ["lexicon.tsv.gz", "lts.txt.gz"])
def test_damaged_tables_are_named(copy: VoiceConfig, name: str) -> None:
    file = copy.checkpoint / name
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(VoiceError, match=name):
        FAMILY.load_talker(copy, CPU)

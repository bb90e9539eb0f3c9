"""Weights between the steps, in float32 safetensors files."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

CODEC = "codec.safetensors"
TALKER = "talker.safetensors"


def save(module: nn.Module, path: Path) -> None:
    """Write all weights; a reader never sees half a file."""
    part = path.with_suffix(".part")
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, part)
    part.replace(path)


def load(module: nn.Module, path: Path) -> None:
    module.load_state_dict(load_file(path))

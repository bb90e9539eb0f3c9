"""Reading a voice's tensors from safetensors files, checked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from backends.voice import VoiceError

VOICE_FILE = "voice.safetensors"


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file as float32. Raises VoiceError if it is missing or damaged."""
    if not path.is_file():
        raise VoiceError(f"{path}: no such file; checkpoint must name a folder that holds {path.name}")
    try:
        return {name: tensor.float() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise VoiceError(f"{path}: is not a whole safetensors file ({error}); copy it again") from error


def under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `prefix` and a dot, without that."""
    start = prefix + "."
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Copy tensors into the module's parameters and buffers.

    where: file and prefix, for the message. Raises VoiceError that names every missing, unknown and
    misshapen tensor.
    """
    wanted = module.state_dict()
    problems = [f"{name} is missing" for name in wanted.keys() - tensors.keys()]
    problems += [f"{name} is unknown" for name in tensors.keys() - wanted.keys()]
    for name in wanted.keys() & tensors.keys():
        if wanted[name].shape != tensors[name].shape:
            problems.append(f"{name} is {list(tensors[name].shape)}, not {list(wanted[name].shape)}")
        elif not bool(torch.isfinite(tensors[name]).all()):
            problems.append(f"{name} holds values that are not finite")
    if problems:
        raise VoiceError(f"{where}: does not fit family wren: {'; '.join(sorted(problems))}")
    module.load_state_dict(dict(tensors))

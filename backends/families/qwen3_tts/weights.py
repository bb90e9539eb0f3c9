"""Reading a checkpoint's safetensors files against the table of names and shapes that its config implies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from backends.families.qwen3_tts.tensors import Shapes
from backends.voice import VoiceError

Tensors = dict[str, torch.Tensor]
_SHOWN = 5


def _files(folder: Path) -> list[Path]:
    """The one file, or the shards that the index names."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise VoiceError(f"{index}: is not an index of safetensors files: {error!r}") from error
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.is_file():
        found = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth"))
        also = f" (there is {', '.join(found[:_SHOWN])}, but only safetensors are read)" if found else ""
        raise VoiceError(f"{single}: is missing{also}; download the whole published folder")
    return [single]


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def read_tensors(
    folder: Path,
    shapes: Shapes,
    others: Iterable[str] = (),
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensors:
    """The tensors of `shapes`, converted; each is read, converted and moved before the next.

    others: name prefixes of tensors that may be in the files and are not wanted here. Raises VoiceError that
    names missing, unknown and misshapen tensors, and files that are missing or damaged.
    """
    tensors: Tensors = {}
    unknown: list[str] = []
    misshapen: list[str] = []
    prefixes = tuple(others)
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    expected = shapes.get(name)
                    if expected is None:
                        if not name.startswith(prefixes):
                            unknown.append(name)
                        continue
                    shape = tuple(file.get_slice(name).get_shape())
                    if shape != expected:
                        misshapen.append(f"{name} is {list(shape)}, not {list(expected)}")
                        continue
                    tensors[name] = file.get_tensor(name).to(device=device, dtype=dtype)
        except (SafetensorError, OSError) as error:
            raise VoiceError(f"{path}: cannot be read as safetensors ({error}); download it again") from error
    problems = []
    if missing := shapes.keys() - tensors.keys() - {text.split(" is ")[0] for text in misshapen}:
        problems.append(f"missing {_listed(missing)}")
    if unknown:
        problems.append(f"unknown {_listed(unknown)}")
    if misshapen:
        problems.append(f"misshapen: {_listed(misshapen)}")
    if problems:
        raise VoiceError(f"{folder}: weights do not fit config.json: {'; '.join(problems)}")
    return tensors


def under(tensors: Tensors, prefix: str) -> Tensors:
    """The tensors whose name starts with `prefix`, without it."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}

"""What a stream takes in memory: how much a talker and a codec grow when slots are added.

Measured from outside, by what the C library's allocator, or the device's, has handed out: so that nothing is
missed that a model forgets to report. Weights that are mapped from a file do not count on a CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from backends.codec import Codec
from backends.family import load_family
from backends.talker import Talker
from backends.voice import VoiceConfig
from bench.environment import describe, headline

_SLOTS = 8
MEBIBYTE = 1 << 20


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later; uordblks: bytes in use on heaps, hblkhd: in own mappings."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


@dataclass(frozen=True)
class SlotMemory:
    """Bytes. reported: what the model says a slot takes; measured: what it took."""

    weights: int
    reported: int
    measured: int


def allocated(device: torch.device) -> int:
    """Bytes allocated so far: of the device's tensors, or of this process. Raises ValueError without glibc 2.33."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        raise ValueError("measuring memory on a CPU needs mallinfo2 of glibc 2.33; this C library has none")
    libc.mallinfo2.restype = _Mallinfo2
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def slot_memory(
    load: Callable[[], Talker | Codec], allocate: Callable[[Any, int], None], device: torch.device
) -> SlotMemory:
    """Load a model and give it one slot, then more."""
    begin = allocated(device)
    model = load()
    weights = allocated(device) - begin
    allocate(model, 1)
    one = allocated(device)
    allocate(model, 1 + _SLOTS)
    return SlotMemory(weights, model.slot_bytes(), (allocated(device) - one) // _SLOTS)


def measure(voice: VoiceConfig, device: torch.device, console: Console) -> dict[str, Any]:
    """Print and return the memory of a voice's talker and codec."""
    family, length = load_family(voice.family), voice.engine.max_length
    found = {
        "talker": slot_memory(
            lambda: family.load_talker(voice, device),
            lambda talker, slots: talker.allocate(slots, length),
            device,
        ),
        "codec": slot_memory(
            lambda: family.load_codec(voice, device), lambda codec, slots: codec.allocate(slots), device
        ),
    }
    console.print(headline())
    console.print(f"voice {voice.name}, {device}, max_length {length}; MiB")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "model", "a stream, measured", "a stream, as the model reports"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, memory in found.items():
        sizes = (memory.weights, memory.measured, memory.reported)
        table.add_row(name, *(f"{size / MEBIBYTE:.2f}" for size in sizes))
    console.print(table)
    return {
        "environment": describe(),
        "voice": voice.name,
        "max_length": length,
        "bytes": {name: asdict(memory) for name, memory in found.items()},
    }

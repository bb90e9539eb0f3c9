"""Tiny checkpoints with random weights, in the published layout, written once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backends.families.qwen3_tts.random_checkpoint import write_random_checkpoint
from tests.qwen3_tts.golden import cases

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint named "<size> <style>", as the goldens name them."""
    root = tmp_path_factory.mktemp("qwen3_tts")

    def folder(name: str) -> Path:
        path = root / name.replace(" ", "-")
        if not path.exists():
            size, style = name.split()
            write_random_checkpoint(path, size, style, tiny=True, seed=cases.SEED)
        return path

    return folder

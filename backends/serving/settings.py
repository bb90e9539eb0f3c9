"""Settings of the two model processes, read once from the environment that the server was started with.

The Triton Python stub inherits its server's environment; it is the one channel that reaches both models alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from backends.voice import VoiceConfig, VoiceError, load_voice

VOICES = Path(__file__).resolve().parents[2] / "voices"


@dataclass(frozen=True)
class Settings:
    """TRITONE_VOICE: name of a YAML under voices/, or a path to one. TRITONE_DEVICE: cpu or cuda (cuda:1).
    TRITONE_LEDGER: path of the ledger file. TRITONE_LOG_LEVEL: debug, info, warning or error.
    TRITONE_VOICES: folder in which voice names are looked up. TRITONE_KEY: what a caller of op=drain must
    know; empty lets everybody."""

    voice: VoiceConfig
    device: torch.device
    ledger: Path
    log_level: str
    key: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises VoiceError if the voice or the device cannot be had."""
        name = environment.get("TRITONE_VOICE", "wren")
        folder = Path(environment.get("TRITONE_VOICES", VOICES))
        known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        path = known.get(name) or Path(name)
        if name not in known and path.suffix not in (".yaml", ".yml"):
            raise VoiceError(f"TRITONE_VOICE is {name!r}; give one of {', '.join(known)} or a path to a YAML")
        device = torch.device(environment.get("TRITONE_DEVICE", "cpu"))
        if device.type == "cuda" and not torch.cuda.is_available():
            raise VoiceError(f"TRITONE_DEVICE is {device}, but torch sees no CUDA device; use cpu")
        return cls(
            voice=load_voice(path),
            device=device,
            ledger=Path(environment.get("TRITONE_LEDGER", "/dev/shm/tritone.ledger")),
            log_level=environment.get("TRITONE_LOG_LEVEL", "info"),
            key=environment.get("TRITONE_KEY", ""),
        )

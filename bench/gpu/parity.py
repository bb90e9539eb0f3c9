"""Every captured key against the same call made eagerly, from the same state and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from backends.codec import Codec
from backends.codec_engine import CodecEngine
from backends.graphs import CaptureBackend, GraphRunner
from backends.talker import SpeechRequest, Talker
from backends.talker_engine import TalkerEngine
from backends.voice import VoiceConfig

TEXT = "Parity is the property of being even or odd, and here of being the same."


@dataclass(frozen=True)
class Parity:
    """Of one engine. worst: largest difference of a key's outputs between replay and eager call, and that
    key."""

    keys: int
    worst: float
    worst_key: tuple[int, int]
    captures_warmup: int
    captures_runtime: int
    fallbacks: int
    misses: int

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words; differences below 1e-5 are rounding of another kernel choice."""
        found = []
        if not self.worst <= 1e-5:  # NaN too
            found.append(f"replay of {self.worst_key} differs from the eager call by {self.worst:.2e}")
        if self.captures_warmup != self.keys:
            found.append(f"{self.captures_warmup} of {self.keys} keys were captured")
        for name in ("captures_runtime", "fallbacks", "misses"):
            if getattr(self, name):
                found.append(f"{name} is {getattr(self, name)}; it must be 0")
        return found


def _compare(
    runner: GraphRunner[tuple[int, int]], capture: CaptureBackend, begin: Callable[[tuple[int, int]], None]
) -> Parity:
    """begin: sets state and inputs of a key, the same each time."""
    worst, worst_key = 0.0, runner.keys[0]
    for key in runner.keys:
        begin(key)
        inputs = runner.inputs(key)
        inputs.upload()
        eager = [a.copy() for a in capture.fetch(runner.eager(key)(*inputs.tensors))]
        begin(key)
        replayed = runner.run(key)
        difference = max(
            float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(eager, replayed, strict=True)
        )
        if not difference <= worst:
            worst, worst_key = difference, key
    counters = runner.counters
    return Parity(
        keys=len(runner.keys),
        worst=worst,
        worst_key=worst_key,
        captures_warmup=counters.captures_warmup,
        captures_runtime=counters.captures_runtime,
        fallbacks=counters.fallbacks,
        misses=counters.misses,
    )


@torch.inference_mode()
def codec_parity(codec: Codec, voice: VoiceConfig, capture: CaptureBackend) -> Parity:
    """Random frames on fresh slots, for every (rows, frames)."""
    engine = CodecEngine(codec, voice.engine, voice.stream.frame_sizes("state"), capture=capture)
    engine.warm_up(lambda done, total: None)
    spec = codec.spec

    def begin(key: tuple[int, int]) -> None:
        rows, size = key
        chance = np.random.default_rng(rows * 1000 + size)
        control, frames = engine.runner.inputs(key).arrays
        control[0] = np.arange(rows)
        control[1], control[2] = size, 0
        if spec.kind == "codes":
            frames[:] = chance.integers(0, spec.sizes, frames.shape)
        else:
            frames[:] = chance.normal(size=frames.shape)
        codec.open(torch.arange(rows, device=codec.device))

    return _compare(engine.runner, capture, begin)


@torch.inference_mode()
def talker_parity(talker: Talker, voice: VoiceConfig, capture: CaptureBackend) -> Parity:
    """The first step after the same prompt on every slot, for every (rows, cache length)."""
    engine = TalkerEngine(talker, voice.engine, capture=capture)
    engine.warm_up(lambda done, total: None)
    speaker = talker.speakers[0] if talker.speakers else None
    prompt = talker.build_prompt(SpeechRequest(TEXT, speaker=speaker), TEXT, True)

    def begin(key: tuple[int, int]) -> None:
        rows, length = key
        control, noise = engine.runner.inputs(key).arrays
        control[0] = np.arange(rows)
        control[1] = -1 if talker.text_mode == "per_frame" else 0
        noise[:] = np.random.default_rng(rows * 1000 + length).uniform(0.01, 0.99, noise.shape)
        slots = torch.arange(rows, device=talker.device)
        whole = prompt.inputs[: length - 1]
        run = talker.prefill_chunk or len(whole)
        for at in range(0, len(whole), run):
            part = whole[at : at + run].to(talker.device)
            talker.prefill(
                slots,
                part[None].expand(rows, *part.shape).contiguous(),
                torch.full_like(slots, len(part)),
                torch.full_like(slots, at),
            )

    return _compare(engine.runner, capture, begin)

"""What the tests of this folder share: voices over tiny checkpoints, requests, engines, whole runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.families.qwen3_tts.loading import load_codec, load_talker
from backends.graphs import CaptureBackend, EagerCapture
from backends.talker import Prompt, SamplingParameters, SpeechRequest, Talker
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import EngineConfig, VoiceConfig

CPU = torch.device("cpu")
GREEDY = SamplingParameters(0.0, 0, 1.0, 1.05, {"subtalker_temperature": 0.0})
PUBLISHED = SamplingParameters(0.9, 50, 1.0, 1.05)


def voice(folder: Path, **options: Any) -> VoiceConfig:
    return VoiceConfig(
        name="test",
        family="qwen3_tts",
        checkpoint=folder,
        source=folder / "voice.yaml",
        options=options,
    )


def talker(folder: Path, **options: Any):
    return load_talker(voice(folder, **options), CPU)


def codec(folder: Path, **options: Any):
    return load_codec(voice(folder, **options), CPU)


def request(text: str = "Hello there.", **fields: Any) -> SpeechRequest:
    return SpeechRequest(text, **{"sampling": GREEDY, "max_frames": 24, **fields})


def engine(model: Talker, slots: int = 4, capture: CaptureBackend | None = None) -> TalkerEngine:
    config = EngineConfig(max_slots=slots, max_length=128, talker_batch_buckets=(1, 2, 4))
    made = TalkerEngine(model, config, capture=capture or EagerCapture(CPU))
    made.warm_up(lambda done, total: None)
    return made


def stream(asked: SpeechRequest, prompt: Prompt, **fields: Any) -> SpeechStream:
    """A stream whose text is all there."""
    return SpeechStream(
        asked, prompts=deque([prompt]), **{"more_prompts": False, "text_ended": True, **fields}
    )


def run(
    machine: TalkerEngine,
    streams: Iterable[SpeechStream],
    every: int = 0,
    each_step: Callable[[int], None] = lambda n: None,
) -> list[np.ndarray]:
    """Codes int [frames, 16] of each stream; they join `every` that many steps, all at once if 0."""
    waiting = deque(streams)
    order = list(waiting)
    frames: dict[SpeechStream, list[np.ndarray]] = {s: [] for s in order}
    step = 0
    while waiting or any(s.finish_reason is None for s in order):
        while waiting and (not every or step % every == 0):
            machine.admit(waiting.popleft())
            if every:
                break
        each_step(step)
        done = machine.step()
        for owner, frame in zip(done.streams, done.frames, strict=True):
            frames[owner].append(frame)
        for _, _, error in done.ended:
            if error is not None:
                raise error
        step += 1
        assert step < 1000, "the streams do not end"
    return [np.array(frames[s], np.int64).reshape(-1, 16) for s in order]


def speak(model: Talker, asked: SpeechRequest, **fields: Any) -> np.ndarray:
    """Codes of one request, alone."""
    return run(
        engine(model, slots=1), [stream(asked, model.build_prompt(asked, asked.text, True), **fields)]
    )[0]

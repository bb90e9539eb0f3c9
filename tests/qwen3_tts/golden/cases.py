"""What the goldens are made of: used by make_golden.py (reference package) and by the tests (this
project)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backends.families.qwen3_tts.random_checkpoint import uniform

SEED = 7
FRAMES = 24
REFERENCE_TEXT = "It was the best of times."
TOKEN_TEXTS = (
    "Hello there, it's 3.50 today!",
    "  two  spaces\nand a new line \n\n end ",
    "我叫通义千问，是阿里云的开源大模型。",
    "NaOH eBay don't we'LL e\u0301t\u00e9 \U0001f600 안녕하세요",
)


@dataclass(frozen=True)
class Case:
    """One request. checkpoint: "<size> <style>". whole: text wholly in the prompt (non_streaming_mode=True of
    the reference) instead of one token a frame. eos_gain: factor on the codec head's row of the end code."""

    name: str
    checkpoint: str
    text: str
    whole: bool
    language: str = "auto"
    speaker: str | None = None
    instructions: str | None = None
    reference: str | None = None  # "x_vector" or "in_context"
    eos_gain: float = 1.0
    embeddings: bool = True


CASES = (
    Case("custom", "1.7b custom_voice", "Good morning to you all.", False, "english", "ryan"),
    Case("custom_whole", "1.7b custom_voice", "Good morning to you all.", True, "english", "Ryan"),
    Case(
        "custom_instruct",
        "1.7b custom_voice",
        "The rest is silence.",
        False,
        speaker="vivian",
        instructions="Speak slowly.",
    ),
    Case("custom_dialect", "1.7b custom_voice", "你好。", False, "chinese", "eric", embeddings=False),
    Case("custom_short", "1.7b custom_voice", "A", False, "german", "serena", embeddings=False),
    Case(
        "small_custom", "0.6b custom_voice", "One, two and three.", False, "french", "aiden", embeddings=False
    ),
    Case("design", "1.7b voice_design", "Who goes there?", False, "english", instructions="An old sailor."),
    Case("design_whole", "1.7b voice_design", "Who goes there?", True, instructions="An old sailor."),
    Case("x_vector", "1.7b base", "In my voice.", False, "english", reference="x_vector"),
    Case("in_context", "1.7b base", "Out of time.", False, "english", reference="in_context"),
    Case(
        "in_context_long",
        "1.7b base",
        "So we beat on, boats against the current, borne back ceaselessly into the past.",
        False,
        reference="in_context",
        embeddings=False,
    ),
    Case("in_context_whole", "1.7b base", "Out of time.", True, "english", reference="in_context"),
    Case("ends", "1.7b custom_voice", "Never mind the rest.", False, "english", "ryan", eos_gain=1.5),
    Case(
        "ends_at_once", "1.7b custom_voice", "Hm.", False, "english", "ryan", eos_gain=30.0, embeddings=False
    ),
)


def reference_audio() -> np.ndarray:
    """float32 [samples] at 24 kHz, 1.6 s and not a whole number of frames: a gliding hum with noise."""
    time = np.arange(38_777) / 24_000
    hum = sum(0.2 / k * np.sin(2 * np.pi * k * (140 + 30 * time) * time) for k in range(1, 6))
    return (hum + 0.02 * uniform("reference audio", time.size, SEED)).astype(np.float32)


def codec_frames() -> np.ndarray:
    """int64 [2, 40, 16] codes below 64 for the tiny codec."""
    noise = uniform("codec frames", 2 * 40 * 16, SEED).reshape(2, 40, 16)
    return ((noise + 1) * 32).astype(np.int64)

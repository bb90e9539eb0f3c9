"""Sizes that talker, codec and training share."""

from __future__ import annotations

from backends.frames import FrameSpec

SAMPLE_RATE = 16_000
SAMPLES_PER_TICK = 160  # 10 ms, the codec's inner step and the resolution of phone boundaries
TICKS_PER_FRAME = 8
SAMPLES_PER_FRAME = SAMPLES_PER_TICK * TICKS_PER_FRAME  # 80 ms
CODEBOOKS = 8
CODEBOOK_SIZE = 512
LATENT_SIZE = 64

FRAME_SPEC = FrameSpec(
    kind="codes",
    width=CODEBOOKS,
    sizes=(CODEBOOK_SIZE,) * CODEBOOKS,
    sample_rate=SAMPLE_RATE,
    channels=1,
    samples_per_frame=SAMPLES_PER_FRAME,
    delay=(0,) * CODEBOOKS,
)

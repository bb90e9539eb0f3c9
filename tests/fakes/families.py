"""Small fake families that stand for the real ones, one for each demand on the interface.

`voice.family` cannot name them (they are no modules under backends/families); tests take them from FAMILIES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backends.frames import FrameSpec
from backends.talker import Talker
from tests.fakes.codecs import RerunCodec, StateCodec, TinyCodec, TrimmedCodec, WindowCodec
from tests.fakes.talkers import CodeTalker, DelayTalker, LatentTalker, TokenTalker


@dataclass(frozen=True)
class FakeFamily:
    """talker, codec: make fresh ones, always with the same weights."""

    spec: FrameSpec
    talker: Callable[[], Talker]
    codec: Callable[[], TinyCodec]


def _codes(width: int, size: int, samples: int, rate: int = 24_000, **more: object) -> FrameSpec:
    return FrameSpec("codes", width, (size,) * width, rate, more.pop("channels", 1), samples, **more)  # type: ignore[arg-type]


QWEN = _codes(4, 24, 32)
ORPHEUS = _codes(7, 12, 16, steps_per_frame=7)
DELAY = _codes(4, 20, 32, delay=(0, 1, 2, 3))
HIGGS = _codes(3, 20, 16, delay=(0, 1, 2))
POCKET = FrameSpec("latent", 6, (), 24_000, 1, 32)
OMNI = _codes(4, 24, 24)
COSY = _codes(1, 40, 16)
STEREO = _codes(3, 24, 32, rate=48_000, channels=2)

FAMILIES = {
    # One step a frame, causal codec with state.
    "qwen": FakeFamily(QWEN, lambda: CodeTalker(QWEN, 1), lambda: StateCodec(QWEN, 2)),
    # Seven tokens a frame, windowed codec with look-ahead.
    "orpheus-snac": FakeFamily(ORPHEUS, lambda: TokenTalker(ORPHEUS, 3), lambda: WindowCodec(ORPHEUS, 4)),
    # Delay pattern, causal codec with state.
    "moss-delay": FakeFamily(DELAY, lambda: DelayTalker(DELAY, 5), lambda: StateCodec(DELAY, 6)),
    # Delay pattern, windowed codec with look-ahead.
    "higgs": FakeFamily(HIGGS, lambda: DelayTalker(HIGGS, 7), lambda: WindowCodec(HIGGS, 8)),
    # Float latents.
    "pocket": FakeFamily(POCKET, lambda: LatentTalker(POCKET, 9), lambda: StateCodec(POCKET, 10)),
    # A text id a frame, samples held back.
    "omni": FakeFamily(
        OMNI, lambda: CodeTalker(OMNI, 11, per_frame=True), lambda: TrimmedCodec(OMNI, 12, (4, 3))
    ),
    # One code a frame, the codec runs over the whole stream each time.
    "cosyvoice": FakeFamily(COSY, lambda: CodeTalker(COSY, 13, window=12), lambda: RerunCodec(COSY, 14)),
    # 48 kHz stereo, interleaved inside the network.
    "moss-local": FakeFamily(STEREO, lambda: CodeTalker(STEREO, 15), lambda: StateCodec(STEREO, 16)),
}

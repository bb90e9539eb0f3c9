"""Chunk sizes by buffer feedback: climb the ladder as fast as the listener's buffer allows."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from chunk_policies.checks import whole_number
from chunk_policies.context import ContextChunkPolicy

#: Weight of the newest interval in the running estimate of the time a frame takes (vLLM-Omni uses the same).
EWMA_WEIGHT = 0.3
#: The growth floor: after this many chunks of one size the next is a step larger, whatever the buffer says.
#: A floor that waits for a positive buffer spirals: small chunks cost more codec time a frame, which empties
#: the buffer, which keeps the chunks small (vLLM-Omni met this, PR #6001).
MAX_REPEATS = 3


@dataclass(frozen=True)
class AdaptiveSettings:
    """What the controller of one stream needs to know.

    Attributes:
        ladder: sizes to choose from, ascending, in frames; nothing else is ever chosen.
        frame_seconds: audio in one frame.
        first: frames of the first chunk; 0 for the smallest on the ladder.
        safety_margin_seconds: audio that the estimate must leave in the listener's buffer.
        context_cost_seconds: codec time that decoding the left context adds to a chunk (0: codec with state).
    """

    ladder: tuple[int, ...]
    frame_seconds: float
    first: int = 0
    safety_margin_seconds: float = 0.05
    context_cost_seconds: float = 0.0

    def __post_init__(self) -> None:
        for size in self.ladder:
            whole_number("ladder entry", size, 1)
        if not self.ladder or list(self.ladder) != sorted(set(self.ladder)):
            raise ValueError(f"ladder = {self.ladder!r}: must hold at least one size, ascending, each once")
        whole_number("first", self.first, 0)
        if not (math.isfinite(self.frame_seconds) and self.frame_seconds > 0):
            raise ValueError(f"frame_seconds = {self.frame_seconds!r}: must be a positive number of seconds")
        for name in ("safety_margin_seconds", "context_cost_seconds"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise ValueError(f"{name} = {value!r}: must be a number of seconds, 0 or more")


@dataclass
class AdaptiveTelemetry:
    """What the controller of one stream has done.

    Attributes:
        sizes: frames of each chunk sent, in order.
        gaps: for each chunk, the seconds of silence that the listener is estimated to have heard before it
            (a player that starts with the first chunk and pauses when it has nothing to play).
    """

    sizes: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def total_gap(self) -> float:
        """Seconds of estimated silence over the whole stream."""
        return sum(self.gaps)


class AdaptiveController:
    """Chooses the size of each next chunk of one stream.

    When a chunk leaves, the listener's buffer is estimated as the audio sent minus the time since the first
    chunk left. The next chunk is one step up the ladder if its frames can be produced, at the estimated cost
    of a frame, while the buffer stays above the safety margin; else it has the same size. It never takes two
    steps at once, since the codec's latency grows with the size by an amount that nobody has measured yet,
    and never a step down, since a smaller chunk costs more a frame. After ``MAX_REPEATS`` chunks of one size
    the step is taken anyway.

    The cost of a frame comes from the times at which frames are produced. When responses are taken by the
    client plays no part in it, so a slow client does not look like slow hardware.

    Attributes:
        frame_cost: estimated seconds it takes to produce a frame; ``None`` before the second frame.
        telemetry: what was decided so far.
    """

    def __init__(self, settings: AdaptiveSettings) -> None:
        self._settings = settings
        self._step = -1 if settings.first else 0
        self._repeats = 0
        self._sent_seconds = 0.0
        self._first_sent: float | None = None
        self._silence = 0.0
        self._last_frame: float | None = None
        self.frame_cost: float | None = None
        self.telemetry = AdaptiveTelemetry()

    @property
    def target(self) -> int:
        """Frames of the next chunk."""
        return self._settings.first if self._step < 0 else self._settings.ladder[self._step]

    def frame_produced(self, now: float) -> None:
        """One more frame exists since ``now``."""
        last, self._last_frame = self._last_frame, now
        if last is not None:
            cost = self.frame_cost
            self.frame_cost = now - last if cost is None else cost + EWMA_WEIGHT * (now - last - cost)

    def producer_paused(self) -> None:
        """The producer was held back; the time until its next frame is not the machine's."""
        self._last_frame = None

    def chunk_sent(self, size: int, now: float) -> None:
        """A chunk of ``size`` frames left at ``now``; decides the size of the next."""
        if self._first_sent is None:
            self._first_sent = now
        elapsed = now - self._first_sent
        gap = max(0.0, elapsed - self._sent_seconds - self._silence)
        self._silence += gap
        self._sent_seconds += size * self._settings.frame_seconds
        self.telemetry.sizes.append(size)
        self.telemetry.gaps.append(gap)
        self._decide(self._sent_seconds - elapsed)

    def _decide(self, buffered: float) -> None:
        ladder = self._settings.ladder
        if self._step < 0:
            self._step = min(bisect_left(ladder, self._settings.first), len(ladder) - 1)
        self._repeats += 1
        if self._step + 1 == len(ladder):
            return
        if self._repeats >= MAX_REPEATS or self._affordable(ladder[self._step + 1], buffered):
            self._step += 1
            self._repeats = 0

    def _affordable(self, size: int, buffered: float) -> bool:
        if self.frame_cost is None:
            return False
        needed = size * self.frame_cost + self._settings.context_cost_seconds
        return needed <= buffered - self._settings.safety_margin_seconds


class AdaptiveChunkPolicy(ContextChunkPolicy):
    """Chunks of the size that an :class:`AdaptiveController` chooses, with left context for a windowed codec.

    Args:
        settings: of the controller.
        clock: seconds, monotonic; read when a chunk leaves. ``observe_frame`` must use the same clock.
        left_context: most items of context a window carries; 0 for a codec that keeps state.
    """

    def __init__(
        self,
        settings: AdaptiveSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        left_context: int = 0,
    ) -> None:
        super().__init__(left_context)
        self._clock = clock
        self._controller = AdaptiveController(settings)

    @property
    def controller(self) -> AdaptiveController:
        """The stream's controller: its frame cost and telemetry."""
        return self._controller

    def next_new_items(self) -> int:
        return self._controller.target

    def observe_frame(self, now: float) -> None:
        self._controller.frame_produced(now)

    def observe_pause(self) -> None:
        self._controller.producer_paused()

    def register_chunk(self, chunk_size: int) -> None:
        super().register_chunk(chunk_size)
        self._controller.chunk_sent(chunk_size, self._clock())

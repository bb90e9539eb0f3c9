"""Cuts the frames of one stream into codec calls: which frames, padded to what size, and which samples count.

One planner a stream. A chunk becomes one call, or several where a prefix has to be heard first or a last
chunk is larger than the largest size. Sizes are chosen among those that are warmed wherever that is exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.codec import Codec


@dataclass(frozen=True)
class CodecCall:
    """One row of one codec call.

    size: T, frames that the row is padded to. frames: [length, width], length <= size. final: ends the
        stream.
    origin: sample of the stream at which the call's sample 0 lies. stop: samples from there on do not count.
    """

    size: int
    frames: np.ndarray
    final: bool
    origin: int
    stop: float


class FrameHistory:
    """The last frames of a stream by their index; a prefix has negative ones."""

    def __init__(self, width: int, dtype: type, begin: int) -> None:
        self.begin = begin
        self._frames: np.ndarray = np.empty((0, width), dtype)

    @property
    def end(self) -> int:
        return self.begin + len(self._frames)

    def append(self, frames: np.ndarray) -> None:
        self._frames = np.concatenate([self._frames, frames]) if len(self._frames) else frames

    def slice(self, begin: int, end: int) -> np.ndarray:
        return self._frames[begin - self.begin : end - self.begin]

    def forget(self, before: int) -> None:
        if before > self.begin:
            self._frames = self._frames[before - self.begin :]
            self.begin = before


class Planner(ABC):
    """Plans the calls of one stream. Chunk by chunk: `receive`, then `next_call` until it returns None.

    prefix: frames before index 0, which only prime the codec. have: new frames received. done: frames whose
        audio has been asked for. emitted: samples delivered, written by the engine after each call.
    """

    def __init__(self, codec: Codec, sizes: Sequence[int], prefix: np.ndarray) -> None:
        self.codec = codec
        self.sizes = tuple(sizes)
        self.prefix = len(prefix)
        self.have = self.done = self.emitted = 0
        self.target = 0
        self.final = False
        dtype = np.int64 if codec.spec.kind == "codes" else np.float32
        self.history = FrameHistory(codec.spec.width, dtype, -self.prefix)
        if self.prefix:
            self.history.append(prefix)

    def receive(self, frames: np.ndarray, final: bool) -> None:
        """Take the new frames [n, width] of the next chunk."""
        if len(frames):
            self.history.append(frames)
        self.have += len(frames)
        self.final = final
        ready = self.codec.ready(self.prefix + self.have, self.prefix + self.done, final)
        self.target = self.done + ready

    @abstractmethod
    def next_call(self) -> CodecCall | None:
        """The next call of the current chunk, or None when it is complete. Advances only by `made`."""

    @abstractmethod
    def made(self, call: CodecCall) -> None:
        """The call was made and `emitted` is up to date."""

    def _size_for(self, frames: int) -> int | None:
        """The smallest warmed size that holds `frames`."""
        i = bisect_left(self.sizes, frames)
        return self.sizes[i] if i < len(self.sizes) else None


class StatePlanner(Planner):
    """Each frame goes through the codec once, in order; only the end of a stream may be padded."""

    def __init__(self, codec: Codec, sizes: Sequence[int], prefix: np.ndarray) -> None:
        super().__init__(codec, sizes, prefix)
        self._heard = -self.prefix
        self._priming = split_exactly(self.prefix, self.sizes)
        self._flushed = False

    def next_call(self) -> CodecCall | None:
        spf = self.codec.spec.samples_per_frame
        origin = -self.prefix * spf
        if self._priming:
            length = self._priming[0]
            return CodecCall(length, self.history.slice(self._heard, self._heard + length), False, origin, 0)
        left = self.target - self._heard
        if left > 0:
            length = size = left
            if self.sizes and left > self.sizes[-1]:
                length = size = self.sizes[-1]
            elif self.final:
                size = self._size_for(left) or left
            end = self._heard + length
            final = self.final and end == self.have
            return CodecCall(size, self.history.slice(self._heard, end), final, origin, np.inf)
        if self.final and self.codec.holds_back and self.have and not self._flushed:
            size = self.sizes[0] if self.sizes else 1
            return CodecCall(size, self.history.slice(self._heard, self._heard), True, origin, np.inf)
        return None

    def made(self, call: CodecCall) -> None:
        self._heard += len(call.frames)
        if self._priming:
            self._priming.pop(0)
        else:
            self.done = self._heard
            self._flushed = call.final
        self.history.forget(self._heard)


class WindowPlanner(Planner):
    """Each call gets context and look-ahead; larger warmed sizes are filled with older frames."""

    def next_call(self) -> CodecCall | None:
        if self.done >= self.target:
            return None
        codec, spf = self.codec, self.codec.spec.samples_per_frame
        begin = max(-self.prefix, self.emitted // spf - codec.left)
        end = self.have if self.final else self.target + codec.right
        largest = self.sizes[-1] if self.sizes else 0
        if end - begin > largest and begin + largest - codec.right > self.done:
            end = begin + largest
        size = self._size_for(end - begin)
        if size is None or size > end - self.history.begin:
            size = end - begin
        begin = end - size
        last = self.final and end == self.have
        stop = np.inf if last else (end - codec.right) * spf
        return CodecCall(size, self.history.slice(begin, end), last, begin * spf, stop)

    def made(self, call: CodecCall) -> None:
        spf = self.codec.spec.samples_per_frame
        self.done = self.target if call.stop == np.inf else int(call.stop) // spf
        largest = self.sizes[-1] if self.sizes else 0
        self.history.forget(self.done - max(self.codec.left + self.codec.right, largest) - 1)


class RerunPlanner(Planner):
    """Every call gets the whole stream, prefix included, padded on the right to a prepared size."""

    def next_call(self) -> CodecCall | None:
        if self.done >= self.target:
            return None
        spf = self.codec.spec.samples_per_frame
        end = self.have if self.final else self.target + self.codec.right
        frames = self.history.slice(-self.prefix, end)
        size = self._size_for(len(frames)) or len(frames)
        return CodecCall(size, frames, self.final, -self.prefix * spf, self.target * spf)

    def made(self, call: CodecCall) -> None:
        self.done = self.target


PLANNERS: dict[str, type[Planner]] = {"state": StatePlanner, "window": WindowPlanner, "rerun": RerunPlanner}


def split_exactly(total: int, sizes: Sequence[int]) -> list[int]:
    """Cut `total` frames into few parts of the given sizes; a rest that no sum of sizes meets comes last."""
    parts: list[list[int] | None] = [[], *([None] * total)]
    for n in range(1, total + 1):
        shorter = [[*before, s] for s in sizes if s <= n and (before := parts[n - s]) is not None]
        parts[n] = min(shorter, key=len, default=None)
    met = max(n for n in range(total + 1) if parts[n] is not None)
    found = sorted(parts[met] or [], reverse=True)
    return found if met == total else [*found, total - met]


def call_sizes(codec: Codec, chunk_sizes: Sequence[int]) -> tuple[int, ...]:
    """Every T that streams with these chunk sizes need, ascending.

    state: the chunk sizes. window: those after every possible amount of context, until context and
        look-ahead are complete. rerun: doublings of the grid up to `codec.longest`.
    """
    if codec.mode == "state":
        return tuple(sorted(set(chunk_sizes)))
    if codec.mode == "window":
        full = codec.left + codec.right
        before, fresh = {0}, {0}
        while fresh:
            fresh = {min(full, b + c) for b in fresh for c in chunk_sizes} - before
            before |= fresh
        return tuple(sorted({b + c for b in before for c in chunk_sizes}))
    sizes = []
    size = codec.hop
    while size < codec.longest:
        sizes.append(size + codec.right)
        size *= 2
    return (*sizes, codec.longest) if codec.longest else ()

"""A small first chunk, then chunks that grow geometrically."""

from __future__ import annotations

import math
from collections.abc import Set

from chunk_policies.checks import consumer_walks, whole_number
from chunk_policies.policy import ChunkPolicy

#: Growth stops here when ``max_chunk`` is not given: no buffer will ever hold more items, and the running
#: size stays an exactly representable float instead of overflowing on an endless stream.
UNBOUNDED = 2**53


class RampChunkPolicy(ChunkPolicy):
    """``first_chunk`` items, then ``chunk_size``, then ``growth`` times the last, up to ``max_chunk``.

    For consumers that run over the whole stream so far at every chunk (flow-matching decoders): an early
    first chunk for the first packet, larger ones for throughput. No overlap; the consumer keeps its own
    history. Sizes are rounded to the nearest whole number, the running size is not.

    Args:
        first_chunk: items in the first chunk, at least 1.
        chunk_size: items in the second chunk, at least 1.
        continue_after_done: as for :class:`~chunk_policies.fixed.FixedChunkPolicy`.
        growth: factor from one chunk to the next, finite, at least 1 (1 keeps them fixed).
        max_chunk: largest size, at least ``chunk_size``; ``None`` for no bound.
    """

    def __init__(
        self,
        first_chunk: int,
        chunk_size: int,
        continue_after_done: bool | Set[str] = False,
        growth: float = 1.0,
        max_chunk: int | None = None,
    ) -> None:
        super().__init__()
        self._first_chunk = whole_number("first_chunk", first_chunk, 1)
        chunk_size = whole_number("chunk_size", chunk_size, 1)
        if not (math.isfinite(growth) and growth >= 1.0):
            raise ValueError(f"growth = {growth!r}: must be finite and at least 1 (1 keeps the chunks fixed)")
        self._growth = float(growth)
        self._max_chunk = UNBOUNDED if max_chunk is None else whole_number("max_chunk", max_chunk, chunk_size)
        self._continue_after_done = consumer_walks(continue_after_done)
        self._size = float(chunk_size)

    def register_chunk(self, chunk_size: int) -> None:
        if self.chunks_sent:
            self._size = min(self._size * self._growth, float(self._max_chunk))
        super().register_chunk(chunk_size)

    def is_ready(self, buffer_len: int) -> bool:
        return buffer_len >= self.window_size()

    def next_chunk_size(self, buffer_len: int) -> int:
        return self.window_size()

    def window_size(self) -> int:
        return round(self._size) if self.chunks_sent else self._first_chunk

    def continue_after_producer_done(self) -> bool:
        return bool(self._continue_after_done)

    def continues_in(self, consumer_walk: str | None) -> bool:
        if isinstance(self._continue_after_done, frozenset):
            return consumer_walk in self._continue_after_done
        return self._continue_after_done

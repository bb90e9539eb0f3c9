"""Chunks of one size, without overlap."""

from __future__ import annotations

from collections.abc import Set

from chunk_policies.checks import consumer_walks, whole_number
from chunk_policies.policy import ChunkPolicy


class FixedChunkPolicy(ChunkPolicy):
    """Release ``chunk_size`` new items at a time.

    Args:
        chunk_size: items a chunk, at least 1.
        continue_after_done: keep producing empty chunks after the producer is done and every item is
            delivered. A set of consumer walks does so only while the consumer is in one of them.
    """

    def __init__(self, chunk_size: int, continue_after_done: bool | Set[str] = False) -> None:
        super().__init__()
        self._chunk_size = whole_number("chunk_size", chunk_size, 1)
        self._continue_after_done = consumer_walks(continue_after_done)

    def is_ready(self, buffer_len: int) -> bool:
        return buffer_len >= self._chunk_size

    def next_chunk_size(self, buffer_len: int) -> int:
        return self._chunk_size

    def window_size(self) -> int:
        return self._chunk_size

    def continue_after_producer_done(self) -> bool:
        return bool(self._continue_after_done)

    def continues_in(self, consumer_walk: str | None) -> bool:
        if isinstance(self._continue_after_done, frozenset):
            return consumer_walk in self._continue_after_done
        return self._continue_after_done

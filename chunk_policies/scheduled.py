"""Chunks whose sizes follow a list, each with left context."""

from __future__ import annotations

from collections.abc import Sequence

from chunk_policies.checks import whole_number
from chunk_policies.context import ContextChunkPolicy


class ScheduledLeftContextChunkPolicy(ContextChunkPolicy):
    """Chunk ``k`` delivers ``schedule[k]`` new items, ``chunk`` of them once the schedule is used up.

    Args:
        schedule: sizes of the first chunks, each at least 1; may be empty.
        chunk: size of every later chunk, at least 1.
        left_context: most items of context a window carries, at least 0 (0 for a codec that keeps state).
    """

    def __init__(self, schedule: Sequence[int], chunk: int, left_context: int = 0) -> None:
        super().__init__(left_context)
        self._schedule = tuple(whole_number(f"schedule[{k}]", size, 1) for k, size in enumerate(schedule))
        self._chunk = whole_number("chunk", chunk, 1)

    def next_new_items(self) -> int:
        return self._schedule[self.chunks_sent] if self.chunks_sent < len(self._schedule) else self._chunk

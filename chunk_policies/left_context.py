"""Chunks of one size with a fixed left context."""

from __future__ import annotations

from chunk_policies.scheduled import ScheduledLeftContextChunkPolicy


class LeftContextChunkPolicy(ScheduledLeftContextChunkPolicy):
    """The first window is ``chunk`` new items; every later one has ``left_context`` items in front of them.

    This is the pattern of ``chunked_decode`` in the Qwen3-Omni reference code.

    Args:
        chunk: new items a window, at least 1.
        left_context: context items of every window but the first, 0 to ``chunk``.
    """

    def __init__(self, chunk: int, left_context: int) -> None:
        super().__init__((), chunk, left_context)
        if self.left_context > chunk:
            raise ValueError(
                f"left_context = {left_context}: must be at most chunk = {chunk}, because the second window "
                "carries all of it; use ScheduledLeftContextChunkPolicy, whose context grows"
            )

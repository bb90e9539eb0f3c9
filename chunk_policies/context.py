"""What policies with left context have in common."""

from __future__ import annotations

from abc import abstractmethod

from chunk_policies.checks import whole_number
from chunk_policies.policy import ChunkPolicy


class ContextChunkPolicy(ChunkPolicy):
    """Chunks with up to ``left_context`` items of what was delivered before in front of them.

    Subclasses say how many new items come next. The context is whatever has been delivered (or primed) so
    far, capped at ``left_context``, so a first chunk may be smaller than the context.
    """

    def __init__(self, left_context: int) -> None:
        super().__init__()
        self.left_context = whole_number("left_context", left_context, 0)
        self._window: int | None = (
            None  # the next window's size, worked out once a chunk instead of once a frame
        )

    @abstractmethod
    def next_new_items(self) -> int:
        """How many new items the next window holds; changes only when a chunk is registered."""

    @property
    def _delivered(self) -> int:
        return self.primed_items + self.items_sent

    def is_ready(self, buffer_len: int) -> bool:
        return buffer_len >= (self._window or self.window_size())

    def window_size(self) -> int:
        if self._window is None:
            self._window = min(self.left_context, self._delivered) + self.next_new_items()
        return self._window

    def register_chunk(self, chunk_size: int) -> None:
        super().register_chunk(chunk_size)
        self._window = None

    def next_chunk_size(self, buffer_len: int) -> int:
        # The buffer starts ``context`` items before the first new one, now and after this window.
        delivered = self._delivered
        delivered_after = delivered + self.next_new_items()
        return max(0, delivered_after - self.left_context) - max(0, delivered - self.left_context)

    def prime(self, context_items: int) -> None:
        count = whole_number("context_items", context_items, 0)
        if count > self.left_context:
            raise ValueError(
                f"prime({count}): at most left_context = {self.left_context} items can be context; "
                "give fewer items or raise left_context"
            )
        if self.chunks_sent:
            raise ValueError(
                f"prime({count}): {self.chunks_sent} chunks were sent; prime before the first one"
            )
        self.primed_items = count
        self._window = None

"""Windows of one size that advance by a stride."""

from __future__ import annotations

from chunk_policies.checks import whole_number
from chunk_policies.policy import ChunkPolicy


class SlidingWindowChunkPolicy(ChunkPolicy):
    """Release windows of ``window`` items, each starting ``stride`` items after the one before.

    Example: SNAC in Orpheus, window 28 tokens (4 frames), stride 7 (1 frame). The last window is what
    remains: the overlap of ``window - stride`` items plus whatever is still new.

    Args:
        window: items a window, at least 1.
        stride: items from the start of one window to the next, 1 to ``window`` (more would skip items).
    """

    def __init__(self, window: int, stride: int) -> None:
        super().__init__()
        self._window = whole_number("window", window, 1)
        self._stride = whole_number("stride", stride, 1)
        if self._stride > self._window:
            raise ValueError(
                f"stride = {stride}: must be at most window = {window}, or items between two windows are lost"
            )

    def is_ready(self, buffer_len: int) -> bool:
        return buffer_len >= self._window

    def next_chunk_size(self, buffer_len: int) -> int:
        return self._stride

    def window_size(self) -> int:
        return self._window

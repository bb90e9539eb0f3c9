"""Telling the server what was taken, so that it runs ahead of a slow user by a window at most."""

from __future__ import annotations

from client.audio import AudioChunk

# Acknowledge when this share of the window was taken: seldom enough to cost nothing, often enough that a user
# who takes everything at once is never waited for.
ACKNOWLEDGED_SHARE = 0.25


class TakenAudio:
    """Counts what the user has taken of one stream. window_seconds None: nothing is ever acknowledged."""

    def __init__(self, window_seconds: float | None) -> None:
        self._window_seconds = window_seconds
        self._acknowledged = 0

    def position_to_acknowledge(self, chunk: AudioChunk) -> int | None:
        """After the user has taken `chunk`: samples per channel to acknowledge now, None if it can wait."""
        if self._window_seconds is None:
            return None
        position = chunk.first_sample + len(chunk.samples)
        if position - self._acknowledged < ACKNOWLEDGED_SHARE * self._window_seconds * chunk.sample_rate:
            return None
        self._acknowledged = position
        return position

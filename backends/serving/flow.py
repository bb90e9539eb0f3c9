"""How far a stream may run ahead of its client.

Triton queues responses without bound for a client that does not read, and a model cannot see that queue. So
a client may ask for a window and acknowledge what it has taken; the talker then pauses a stream that is a
window ahead. Without a window a stream runs free, bounded by `limits.max_seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FlowWindow:
    """The window of one stream; all of it in seconds, of audio or on the talker's clock.

    window: audio that may have been sent and not acknowledged. taken: audio acknowledged. blocked_since: when
    the stream last came to a stop, or was last acknowledged while it stood.
    """

    window: float
    taken: float = 0.0
    blocked_since: float | None = None

    def acknowledge(self, position: float, sent: float, now: float) -> None:
        """The client has taken all audio before `position`. Never goes back, nor past what was sent."""
        position = min(position, sent)
        if position > self.taken:
            self.taken = position
            if self.blocked_since is not None:
                self.blocked_since = now

    def blocked(self, sent: float, now: float) -> bool:
        """Whether the stream must wait for its client, now that so much audio was sent."""
        if sent - self.taken <= self.window:
            self.blocked_since = None
        elif self.blocked_since is None:
            self.blocked_since = now
        return self.blocked_since is not None

    def stalled(self, now: float) -> float:
        """For how long the stream has waited without hearing of its client."""
        return 0.0 if self.blocked_since is None else now - self.blocked_since

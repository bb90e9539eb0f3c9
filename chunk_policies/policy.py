"""What every chunk policy can be asked and told."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ChunkPolicy(ABC):
    """Decides when a ``StreamBuffer`` releases a window, and how large it is.

    One policy object belongs to one stream: it counts what that stream has sent. ``buffer_len`` in the
    methods below is the number of items that the buffer holds: context kept from earlier windows plus the
    items that are still to be delivered.

    The surface is that of M*'s chunk policies (``mstar.streaming.chunk_policy``), plus
    :meth:`observe_frame` for policies that adapt to the machine.
    """

    def __init__(self) -> None:
        self.chunks_sent = 0
        self.items_sent = 0
        self.primed_items = 0

    @abstractmethod
    def is_ready(self, buffer_len: int) -> bool:
        """Whether ``buffer_len`` items are enough for the next window."""

    @abstractmethod
    def next_chunk_size(self, buffer_len: int) -> int:
        """How many items the buffer's start moves on when the next window is popped (the stride).

        Only meaningful when :meth:`is_ready` is true.
        """

    @abstractmethod
    def window_size(self) -> int:
        """How many items the next window holds, context included."""

    def register_chunk(self, chunk_size: int) -> None:
        """A chunk of ``chunk_size`` new items has left (told by ``StreamBuffer.pop_chunk`` alone)."""
        self.chunks_sent += 1
        self.items_sent += chunk_size

    def observe_frame(self, now: float) -> None:  # noqa: B027 - most policies do not adapt
        """The stream's producer has finished one more frame at ``now`` (seconds on the policy's clock)."""

    def observe_pause(self) -> None:  # noqa: B027
        """The producer was held back by something that is not the machine: no text yet, or a slow client.

        The time until its next frame says nothing about the cost of a frame.
        """

    def prime(self, context_items: int) -> None:
        """Let the first ``context_items`` items put into the buffer count as delivered already.

        They reach the consumer only as context of the first window (a cloned voice's reference frames, say).
        Call it before the first item is put.

        Raises:
            ValueError: ``context_items`` is negative, or more than 0 for a policy without context.
        """
        if context_items:
            raise ValueError(
                f"prime({context_items}): {type(self).__name__} keeps no context, so only 0 is possible; "
                "use a left-context policy"
            )

    def continue_after_producer_done(self) -> bool:
        """Whether empty chunks keep coming once the producer is done and every item is delivered.

        Such a stream never ends by itself: none of its chunks is final.
        """
        return False

    def continues_in(self, consumer_walk: str | None) -> bool:
        """Whether those empty chunks come while the consumer is in ``consumer_walk``."""
        return self.continue_after_producer_done()

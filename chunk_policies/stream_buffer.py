"""Frames in, windows out: the queue between a producer and a consumer of one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from chunk_policies.policy import ChunkPolicy

Item = TypeVar("Item")

#: Delivered items are dropped from the list in blocks, so that dropping costs O(1) an item on average.
COMPACT_AT = 256


@dataclass(frozen=True, slots=True)
class StreamChunk(Generic[Item]):
    """One window of a stream.

    Attributes:
        items: the window: ``context_items`` items delivered before, then the new ones. The very objects that
            were put (a numpy row view stays a view and keeps its array alive), in order.
        chunk_index: 0, 1, 2, ... over the chunks of the stream, the final one included.
        start_offset: index in the stream of ``items[0]``, counted from the first item put (a primed one, if
            there are any); for an empty window, of the item that would come next.
        context_items: how many leading items are context; the consumer drops what it makes of them.
        is_final: no chunk follows.
    """

    items: list[Item]
    chunk_index: int
    start_offset: int
    context_items: int
    is_final: bool

    @property
    def num_items(self) -> int:
        """Items in the window, context included."""
        return len(self.items)

    @property
    def num_new(self) -> int:
        """Items in the window that no earlier window delivered as new."""
        return len(self.items) - self.context_items


class StreamBuffer(Generic[Item]):
    """Holds one stream's items until its policy releases them as windows.

    Every item is new in exactly one window, in order. Once the producer is done everything pending is ready
    at once: first whole windows of the policy's sizes, if more is pending than one of them holds, then what
    the buffer still holds as the last, shorter one. No window is ever larger than the policy's, because
    graphs exist only for those sizes; so poll ``while buffer.has_chunk_ready()``.

    Exactly one chunk is final: the last. It empties the buffer, so with a policy that keeps context it always
    starts with that context. It has no new items when the stream has none, or when all of them had left
    before: a decoder that holds samples back for look-ahead needs the context then, any other has nothing to
    do.

    A popped chunk counts as sent: pop only what can be sent. Not thread-safe; one stream, one thread.

    Both ``put`` and ``pop_chunk`` cost O(1) an item, amortised; items are never copied.
    """

    __slots__ = ("_chunk_index", "_delivered", "_done", "_finished", "_head", "_items", "_offset", "_policy")

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy
        self._items: list[Item] = []
        self._head = 0  # position in _items of the first item that a later window may need
        self._offset = 0  # index in the stream of _items[0]
        self._delivered = -1  # items of the stream delivered so far; -1: ask the policy how many are primed
        self._chunk_index = 0
        self._done = False
        self._finished = False

    @property
    def policy(self) -> ChunkPolicy:
        """The policy given at construction."""
        return self._policy

    @property
    def pending(self) -> int:
        """Items put that no window has delivered as new yet (primed ones are never new)."""
        return max(0, self._offset + len(self._items) - self._delivered_count())

    @property
    def done(self) -> bool:
        """Whether the producer has signalled its end."""
        return self._done

    @property
    def finished(self) -> bool:
        """Whether the final chunk has been popped."""
        return self._finished

    def put(self, item: Item) -> None:
        """Append one item.

        Raises:
            RuntimeError: after :meth:`signal_done`.
        """
        if self._done:
            raise RuntimeError("put after signal_done: the stream was declared complete")
        self._items.append(item)

    def signal_done(self) -> None:
        """The producer has put its last item. May be called again without effect."""
        self._done = True

    def has_chunk_ready(self, consumer_walk: str | None = None) -> bool:
        """Whether :meth:`pop_chunk` has something to give.

        Args:
            consumer_walk: the consumer's present walk, for policies that continue only in some
                (``ChunkPolicy.continues_in``).
        """
        if self._policy.is_ready(len(self._items) - self._head):
            return True
        if not self._done or self._finished:
            return False
        if self.pending or not self._policy.continue_after_producer_done():
            return True
        return self._policy.continues_in(consumer_walk)

    def pop_chunk(self, consumer_walk: str | None = None) -> StreamChunk[Item]:
        """The next window.

        Args:
            consumer_walk: as for :meth:`has_chunk_ready`.

        Raises:
            RuntimeError: nothing is ready.
        """
        policy = self._policy
        held = len(self._items) - self._head
        delivered = self._delivered_count()
        start = self._offset + self._head
        if policy.is_ready(held):
            size = policy.window_size()
            stride = policy.next_chunk_size(held)
        elif self.has_chunk_ready(consumer_walk):
            size = stride = held
        else:
            raise RuntimeError("pop_chunk: no chunk is ready; ask has_chunk_ready first")

        items = self._items[self._head : self._head + size]
        context = min(size, delivered - start)
        new = size - context
        self._delivered = delivered + new
        self._head += stride
        if self._head >= COMPACT_AT and 2 * self._head >= len(self._items):
            del self._items[: self._head]
            self._offset += self._head
            self._head = 0

        empty = self._head == len(self._items)
        self._finished = self._done and empty and not policy.continue_after_producer_done()
        chunk = StreamChunk(items, self._chunk_index, start, context, self._finished)
        self._chunk_index += 1
        if new:
            policy.register_chunk(new)
        return chunk

    def _delivered_count(self) -> int:
        return self._policy.primed_items if self._delivered < 0 else self._delivered

"""Drives a stream buffer in tests."""

from __future__ import annotations

from collections.abc import Iterable

from chunk_policies import ChunkPolicy, StreamBuffer, StreamChunk


def drain(buffer: StreamBuffer[int], most: int | None = None) -> list[StreamChunk[int]]:
    """Pop until nothing is ready, or ``most`` chunks."""
    chunks: list[StreamChunk[int]] = []
    while buffer.has_chunk_ready() and (most is None or len(chunks) < most):
        chunks.append(buffer.pop_chunk())
    return chunks


def play(
    policy: ChunkPolicy, total: int, polls: Iterable[tuple[int, int | None]] | None = None
) -> list[StreamChunk[int]]:
    """All chunks of a stream of items 0..total-1.

    Each of ``polls`` is (items put, most chunks popped then); what is left over is put, the stream declared
    complete, and drained. ``None`` pops everything ready after each item.
    """
    buffer: StreamBuffer[int] = StreamBuffer(policy)
    chunks: list[StreamChunk[int]] = []
    put = 0
    for count, most in polls if polls is not None else [(1, None)] * total:
        for _ in range(min(count, total - put)):
            buffer.put(put)
            put += 1
        chunks += drain(buffer, most)
    while put < total:
        buffer.put(put)
        put += 1
    buffer.signal_done()
    return chunks + drain(buffer)


def geometry(chunks: Iterable[StreamChunk[int]]) -> list[tuple[int, int, int]]:
    """(window, context, start offset) of each chunk."""
    return [(chunk.num_items, chunk.context_items, chunk.start_offset) for chunk in chunks]


def new_sizes(chunks: Iterable[StreamChunk[int]]) -> list[int]:
    """New items of each chunk that has some."""
    return [chunk.num_new for chunk in chunks if chunk.num_new]

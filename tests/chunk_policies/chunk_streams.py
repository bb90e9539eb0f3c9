"""Drives a stream buffer in tests."""

from __future__ import annotations

from collections.abc import Iterable

from chunk_policies import ChunkPolicy, StreamBuffer, StreamChunk


def drain(buffer: StreamBuffer[int]) -> list[StreamChunk[int]]:
    """Pop until nothing is ready."""
    chunks = []
    while buffer.has_chunk_ready():
        chunks.append(buffer.pop_chunk())
    return chunks


def play(policy: ChunkPolicy, total: int, polls: Iterable[int] | None = None) -> list[StreamChunk[int]]:
    """All chunks of a stream of items 0..total-1.

    ``polls`` are the counts of items put before each poll that pops everything ready; the rest is put, the
    stream declared complete and drained. ``None`` polls after each item.
    """
    buffer: StreamBuffer[int] = StreamBuffer(policy)
    chunks: list[StreamChunk[int]] = []
    put = 0
    for count in polls if polls is not None else [1] * total:
        for _ in range(min(count, total - put)):
            buffer.put(put)
            put += 1
        chunks += drain(buffer)
    while put < total:
        buffer.put(put)
        put += 1
    buffer.signal_done()
    return chunks + drain(buffer)


def geometry(chunks: Iterable[StreamChunk[int]]) -> list[tuple[int, int, int]]:
    """(window, context, start offset) of each chunk."""
    return [(chunk.num_items, chunk.context_items, chunk.start_offset) for chunk in chunks]

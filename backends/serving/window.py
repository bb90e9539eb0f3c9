"""The message from talker to codec: one window of frames, as the two tensors that cross the ensemble."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FINISH_REASONS = ("stop", "length", "cancelled", "error")
META_WORDS = 10


@dataclass(frozen=True)
class Window:
    """One message. index -1 is the opening: it carries no frames and only gives the codec a request of this
    stream to hold, so that the stream can be ended with an error if the talker dies before its first chunk.

    frames: [context + new, width] int32 codes or float32 latents. context: leading frames that the codec gets only
    to warm up. start: index in the stream of the first new frame. finish_reason: set on the final chunk.
    """

    row: int
    generation: int
    index: int
    frames: np.ndarray
    context: int = 0
    start: int = 0
    finish_reason: str | None = None

    @property
    def opening(self) -> bool:
        return self.index < 0

    @property
    def final(self) -> bool:
        return self.finish_reason is not None

    @property
    def new(self) -> int:
        """New frames in this window."""
        return self.frames.shape[0] - self.context

    def pack(self) -> tuple[np.ndarray, np.ndarray]:
        """(frames int32 [n * width], meta int64 [META_WORDS]); float32 latents travel bit-cast."""
        latent = self.frames.dtype == np.float32
        reason = FINISH_REASONS.index(self.finish_reason) + 1 if self.finish_reason is not None else 0
        meta = np.array(
            [
                self.row,
                self.generation,
                self.index,
                self.frames.shape[0],
                self.frames.shape[1],
                latent,
                self.context,
                self.start,
                reason,
                0,
            ],
            np.int64,
        )
        payload = np.ascontiguousarray(self.frames, np.float32 if latent else np.int32)
        return payload.view(np.int32).reshape(-1), meta

    @classmethod
    def unpack(cls, frames: np.ndarray, meta: np.ndarray) -> Window:
        """Inverse of `pack`; copies, since the tensors live in Triton's shared memory only for the call.

        Raises ValueError for tensors that `pack` did not make: anybody may send a request to the model itself.
        """
        if meta.size != META_WORDS:
            raise ValueError(f"meta has {meta.size} words; a window has {META_WORDS}")
        row, generation, index, count, width, latent, context, start, reason, _ = meta.reshape(-1).tolist()
        if min(count, width) < 0 or count * width != frames.size or not 0 <= reason <= len(FINISH_REASONS):
            raise ValueError(f"meta tells of {count} frames of {width}, frames has {frames.size} words")
        payload = frames.reshape(-1).copy()
        return cls(
            row=row,
            generation=generation,
            index=index,
            frames=(payload.view(np.float32) if latent else payload).reshape(count, width),
            context=context,
            start=start,
            finish_reason=FINISH_REASONS[reason - 1] if reason else None,
        )

"""The orchestrator: frames of all streams in, windows out, each when its stream's chunk policy says so.

It lives in the process that generates: that costs an eighth of a decoupled BLS call a frame, which also crashes the
server's Python backend under load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from backends.frames import FrameSpec
from backends.serving.ledger import Ledger
from backends.serving.sessions import Session
from backends.serving.window import Window


class Orchestrator:
    """Buffers, credit and windows of the open streams. Used by the loop thread only.

    credit: chunks of one stream that may be on the way to the client through the codec.
    windowed: the codec wants context frames before each chunk (otherwise it keeps its own history).
    """

    def __init__(
        self,
        spec: FrameSpec,
        windowed: bool,
        ledger: Ledger,
        credit: int,
        counts: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._windowed = windowed
        self._ledger = ledger
        self._credit = credit
        self._counts = counts
        self._clock = clock
        self._empty = np.zeros((0, spec.width), np.int32 if spec.kind == "codes" else np.float32)
        self._outgoing: dict[Session, None] = {}  # sessions that may have a chunk ready, in order

    @property
    def waiting(self) -> bool:
        """Whether a chunk is ready and waits for credit."""
        return bool(self._outgoing)

    def announce(self, session: Session) -> None:
        """Send the opening: the codec then holds a request of this stream before there is audio."""
        self._send(session, Window(session.row, session.generation, -1, self._empty), last=False)

    def prime(self, session: Session, prefix: np.ndarray) -> None:
        """Let the codec hear frames [n, width] before the first: priming context, or a window's left context."""
        frames = prefix.astype(self._empty.dtype)
        if not self._windowed:
            session.prefix = frames
            return
        session.policy.prime(len(frames))
        for frame in frames:
            session.buffer.put(frame)

    def out_of_credit(self, session: Session) -> bool:
        return self._ledger.in_flight(session.row, session.generation) >= self._credit

    def sent_seconds(self, session: Session) -> float:
        """Audio sent so far."""
        return session.delivered * self._spec.seconds

    def put(self, session: Session, frame: np.ndarray, now: float) -> None:
        """Take a new frame [width] of the stream."""
        session.buffer.put(frame)
        session.policy.observe_frame(now)
        self._outgoing[session] = None

    def end(self, session: Session, finish_reason: str) -> None:
        """The talker has made the stream's last frame; what is pending leaves as fast as credit allows."""
        session.finish_reason = finish_reason
        session.buffer.signal_done()
        self._outgoing[session] = None

    def forget(self, session: Session) -> None:
        self._outgoing.pop(session, None)

    def deliver(self) -> list[Session]:
        """Send every window that is due and has credit; returns the streams whose final chunk left."""
        finished = []
        for session in tuple(self._outgoing):
            while session.buffer.has_chunk_ready() and not self.out_of_credit(session):
                if self._send_chunk(session):
                    finished.append(session)
                    break
            if not session.buffer.has_chunk_ready():
                self.forget(session)
        return finished

    def _send_chunk(self, session: Session) -> bool:
        """Send the stream's next chunk; whether it was the final one."""
        chunk = session.buffer.pop_chunk()
        frames = np.stack(chunk.items) if chunk.items else self._empty
        context = chunk.context_items
        if session.prefix is not None:
            frames = np.concatenate([session.prefix, frames])
            context = len(session.prefix)
            session.prefix = None
        window = Window(
            row=session.row,
            generation=session.generation,
            index=session.sent,
            frames=frames,
            context=context,
            start=session.delivered,
            finish_reason=session.finish_reason if chunk.is_final else None,
        )
        if session.first_sent is None:
            session.first_sent = self._clock()
        session.sent += 1
        session.delivered += window.new
        session.stream.deadline = session.first_sent + self.sent_seconds(session)
        self._counts["chunks_total"] += 1
        self._send(session, window, last=chunk.is_final)
        return chunk.is_final

    def _send(self, session: Session, window: Window, last: bool) -> None:
        # The codec may see the window before this call returns, so the count comes first.
        self._ledger.sent[session.row] += 1
        session.responder.window(window, last)

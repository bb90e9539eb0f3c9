"""The open streams of the talker process, and the ledger rows that they hold."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from backends.serving.flow import FlowWindow
from backends.serving.frontend import StreamText
from backends.serving.ledger import GENERATION_BITS, ROWS, Ledger, Outcome
from backends.serving.ports import TalkerResponder
from backends.serving.requests import Speech
from backends.talker_engine import SpeechStream
from chunk_policies import ChunkPolicy, StreamBuffer

# The row of a closed stream that the codec has never heard of is taken back after this long.
LIMBO_SECONDS = 10.0


@dataclass(eq=False)
class Session:
    """One open stream as the orchestrator sees it.

    seen: whether the codec knows the stream. sent: chunks sent. delivered: frames sent as new. prefix: frames
    that prime the codec, until the first chunk is sent. finish_reason: set once the talker made its last frame;
    the chunks may still be on the way out.
    """

    speech: Speech
    responder: TalkerResponder
    row: int
    generation: int
    stream: SpeechStream
    text: StreamText
    policy: ChunkPolicy
    buffer: StreamBuffer
    opened: float
    last_text: float
    flow: FlowWindow | None = None
    seen: bool = False
    sent: int = 0
    delivered: int = 0
    first_sent: float | None = None
    prefix: np.ndarray | None = None
    finish_reason: str | None = None


class Sessions:
    """Open streams by engine stream and by client's id. Used by the loop thread only."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_stream: dict[SpeechStream, Session] = {}
        self._by_text: dict[StreamText, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._free_rows = deque(range(ROWS))
        self._limbo: dict[tuple[int, int], float] = {}  # row and generation of closed streams, and when

    def __len__(self) -> int:
        return len(self._by_stream)

    def __iter__(self) -> Iterator[Session]:
        """A snapshot: sessions may be closed while it is walked."""
        return iter(tuple(self._by_stream.values()))

    def of(self, stream: SpeechStream) -> Session:
        return self._by_stream[stream]

    def reading(self, text: StreamText) -> Session | None:
        """The session whose text it is; None if it was refused or has ended."""
        return self._by_text.get(text)

    def named(self, stream_id: str) -> Session | None:
        return self._by_id.get(stream_id)

    @property
    def has_row(self) -> bool:
        return bool(self._free_rows)

    def open(
        self,
        speech: Speech,
        responder: TalkerResponder,
        stream: SpeechStream,
        text: StreamText,
        policy: ChunkPolicy,
        now: float,
    ) -> Session:
        """Give the stream a ledger row."""
        session = Session(
            speech=speech,
            responder=responder,
            row=self._free_rows.popleft(),
            # Only who was given it can send the codec a window of this stream.
            generation=secrets.randbits(GENERATION_BITS) + 1,
            stream=stream,
            text=text,
            policy=policy,
            buffer=StreamBuffer(policy),
            opened=now,
            last_text=now,
            flow=FlowWindow(speech.flow_window_seconds) if speech.flow_window_seconds else None,
        )
        self._by_stream[stream] = session
        self._by_text[text] = session
        if speech.stream_id:
            self._by_id[speech.stream_id] = session
        self._ledger.open_row(session.row, session.generation)
        return session

    def close(self, session: Session, outcome: Outcome, message: str, now: float) -> None:
        """Close the stream's row; it is used again once the codec has let go of it.

        However long that takes: a busy codec still has audio of the stream, and writes to its row.
        """
        self._ledger.close_row(session.row, outcome, message)
        del self._by_stream[session.stream]
        del self._by_text[session.text]
        self._by_id.pop(session.speech.stream_id, None)
        self._limbo[session.row, session.generation] = now

    def reclaim_rows(self, now: float) -> None:
        """Take back the rows of closed streams that the codec has released, or has never heard of."""
        for (row, generation), closed in tuple(self._limbo.items()):
            released = int(self._ledger.released[row]) == generation
            unknown = not self._ledger.seen(row, generation)
            if released or (unknown and now - closed > LIMBO_SECONDS):
                del self._limbo[row, generation]
                self._ledger.retire_row(row)
                self._free_rows.append(row)

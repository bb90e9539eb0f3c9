"""The ledger: shared memory through which talker and codec processes see what Triton does not tell them.

An ensemble carries windows from talker to codec and nothing back. So a memory-mapped file holds one row for every
open stream: the talker writes what it has sent and how a stream was closed, the codec what it has decoded and
whether the client is gone. Each column has exactly one writer, so no lock is needed; an aligned int64 store is
atomic. Two lock files tell whether the other process is alive (the kernel drops its flock), a heartbeat whether it
still moves. Either side may start first and be reloaded: the file is created by whoever comes first.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from enum import IntEnum
from pathlib import Path
from typing import Literal

import numpy as np

Role = Literal["talker", "codec"]

ROWS = 1024
# Generations are drawn at random, so that nobody can guess one; shifted by the count they fit in 63 bits.
GENERATION_BITS = 42
MESSAGE_BYTES = 248
_HEADER_WORDS = 32
_ROW_WORDS = 6
_COUNT_BITS = 20
_COUNT_MASK = (1 << _COUNT_BITS) - 1
_ROW_BYTES = _ROW_WORDS * 8 * ROWS
_SIZE = _HEADER_WORDS * 8 + _ROW_BYTES + ROWS * (MESSAGE_BYTES + 8)


class Outcome(IntEnum):
    """How the talker closed a row, apart from the final chunk's own finish reason."""

    COMPLETE = 0  # the final chunk was sent; nothing to add
    CANCELLED = 1
    FAILED = 2


class Ledger:
    """One process's view of the ledger file; `role` says which columns it writes. None only reads.

    Columns, each an int64 array [ROWS]:
    generation (talker): > 0 open stream, < 0 closed stream, 0 never used.
    sent (talker): chunks sent to the codec. outcome (talker): see Outcome, valid once closed.
    decoded (codec): generation << 20 | chunks answered. verdict (codec): +generation client is gone,
    -generation decoding failed. released (codec): generation that the codec has forgotten.
    """

    def __init__(self, path: Path, role: Role | None) -> None:
        self.path = path
        self.role = role
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._memory = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        words = np.frombuffer(self._memory, np.int64, _HEADER_WORDS + _ROW_WORDS * ROWS)
        self._header = words[:_HEADER_WORDS]
        columns = words[_HEADER_WORDS:].reshape(_ROW_WORDS, ROWS)
        self.generation, self.sent, self.outcome, self.decoded, self.verdict, self.released = columns
        self._messages = np.frombuffer(
            self._memory, np.uint8, ROWS * (MESSAGE_BYTES + 8), (_HEADER_WORDS + _ROW_WORDS * ROWS) * 8
        ).reshape(ROWS, MESSAGE_BYTES + 8)
        self._locks = {
            name: os.open(f"{path}.{name}", os.O_RDWR | os.O_CREAT, 0o600) for name in ("talker", "codec")
        }
        if role is not None:
            # A process being replaced may still be on its way out; wait for its lock rather than share it.
            fcntl.flock(self._locks[role], fcntl.LOCK_EX)
            self._header[self._epoch_word(role)] += 1
            self._header[self._epoch_word(role) + 1] = 0
            self._forget_predecessor()

    @staticmethod
    def _epoch_word(role: Role) -> int:
        return 0 if role == "talker" else 2

    def _forget_predecessor(self) -> None:
        """Streams of a process that died are over: a new talker closes their rows, a new codec releases them."""
        if self.role == "codec":
            self.released[:] = np.abs(self.generation)
            return
        for row in np.flatnonzero(self.generation > 0).tolist():
            self.close_row(row, Outcome.FAILED, "UNAVAILABLE: the talker process died; try again in seconds")

    def close(self) -> None:
        """Give the lock back (once is enough); the file stays for the other side and for the next start."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def epoch(self, role: Role) -> int:
        """How many times that side has started on this file."""
        return int(self._header[self._epoch_word(role)])

    def beat(self) -> None:
        """Say that this side's loop moves."""
        assert self.role is not None
        self._header[self._epoch_word(self.role) + 1] = time.monotonic_ns()

    def alive(self, role: Role) -> bool:
        """Whether that side's process lives: its lock is free the moment it is gone, zombie or not."""
        try:
            fcntl.flock(self._locks[role], fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._locks[role], fcntl.LOCK_UN)
        return False

    def silent_seconds(self, role: Role) -> float:
        """Seconds since that side's loop last moved; 0 while it is still starting."""
        beat = int(self._header[self._epoch_word(role) + 1])
        return (time.monotonic_ns() - beat) / 1e9 if beat else 0.0

    # The talker's side.

    def open_row(self, row: int, generation: int) -> None:
        self.sent[row] = 0
        self.outcome[row] = Outcome.COMPLETE
        self.generation[row] = generation

    def close_row(self, row: int, outcome: Outcome, message: str = "") -> None:
        """End a stream; message (cut at 248 bytes of UTF-8) is the error's text for FAILED."""
        self._write_message(row, message)
        self.outcome[row] = outcome
        self.generation[row] = -abs(int(self.generation[row]))

    def retire_row(self, row: int) -> None:
        """Forget a closed stream; of one that the codec has never heard of, nobody else would."""
        self.generation[row] = -int(self.released[row])

    def seen(self, row: int, generation: int) -> bool:
        """Whether the codec knows of the stream."""
        return int(self.decoded[row]) >> _COUNT_BITS == generation

    def in_flight(self, row: int, generation: int) -> int:
        """Chunks of the stream that were sent and are not answered yet."""
        decoded = int(self.decoded[row])
        answered = decoded & _COUNT_MASK if decoded >> _COUNT_BITS == generation else 0
        return int(self.sent[row]) - answered

    # The codec's side.

    def set_decoded(self, row: int, generation: int, chunks: int) -> None:
        self.decoded[row] = generation << _COUNT_BITS | chunks

    def knows(self, row: int, generation: int) -> bool:
        """Whether the talker has opened that stream, and perhaps closed it since."""
        return 0 <= row < ROWS and generation > 0 and abs(int(self.generation[row])) == generation

    def is_open(self, row: int, generation: int) -> bool:
        return int(self.generation[row]) == generation

    def _write_message(self, row: int, message: str) -> None:
        data = message.encode()[:MESSAGE_BYTES]
        self._messages[row, 8 : 8 + len(data)] = np.frombuffer(data, np.uint8)
        self._messages[row, :2] = np.array([len(data)], np.uint16).view(np.uint8)

    def message(self, row: int) -> str:
        length = int(self._messages[row, :2].view(np.uint16)[0])
        return self._messages[row, 8 : 8 + length].tobytes().decode(errors="replace")

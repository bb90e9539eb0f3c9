"""From raw talker rows to frames, for families whose rows are no whole frames."""

from __future__ import annotations

from collections import deque

import torch

from backends.frames import FrameAssembler, FrameSpec


class DelayAssembler(FrameAssembler):
    """Undoes a delay pattern: code k of a frame comes `delay[k]` rows after code 0 (MusicGen, MOSS-TTS
    Delay, Higgs).

    A frame that holds an id outside its codebook (start, end or padding marks) is dropped; the first and
    last frames of a delayed stream are like that.
    """

    def __init__(self, spec: FrameSpec) -> None:
        self._delay = spec.delay
        self._books = torch.arange(spec.width)
        self._sizes = torch.tensor(spec.sizes)
        self._rows: deque[torch.Tensor] = deque(maxlen=max(spec.delay) + 1)

    def push(self, raw: torch.Tensor) -> torch.Tensor:
        """raw: int64 [width]."""
        self._rows.append(raw.clone())
        if len(self._rows) <= max(self._delay):
            return raw.new_empty(0, len(raw))
        frame = torch.stack([self._rows[lag][k] for k, lag in enumerate(self._delay)])
        good = bool(((frame >= 0) & (frame < self._sizes)).all())
        return frame[None] if good else frame.new_empty(0, len(frame))

    def flush(self) -> torch.Tensor:
        """Nothing: a frame is complete with its last code's row, and the rows after the last frame have
        none."""
        return torch.empty(0, len(self._delay), dtype=torch.int64)


class TokenGroupAssembler(FrameAssembler):
    """Groups single tokens into frames (Orpheus: seven a frame).

    The token at place i of a frame is its code plus the sizes of the codebooks before i. A token that does
    not fit its place makes the assembler drop the frame and wait for the next token of place 0;
    orpheus-speech goes on with the wrong offset there.
    """

    def __init__(self, spec: FrameSpec, first_token: int = 0) -> None:
        """first_token: id of code 0 at place 0."""
        self._first = first_token
        self._ends = [sum(spec.sizes[: i + 1]) for i in range(spec.width)]
        self._codes: list[int] = []

    def push(self, raw: torch.Tensor) -> torch.Tensor:
        """raw: int64 [1]."""
        token = int(raw[0]) - self._first
        if not self._place(token):
            self._codes = []
            self._place(token)
        if len(self._codes) < len(self._ends):
            return raw.new_empty(0, len(self._ends))
        frame, self._codes = self._codes, []
        return torch.tensor([frame])

    def _place(self, token: int) -> bool:
        """Take the token as the next code if it fits there."""
        place = len(self._codes)
        begin = self._ends[place - 1] if place else 0
        if not begin <= token < self._ends[place]:
            return False
        self._codes.append(token - begin)
        return True

    def flush(self) -> torch.Tensor:
        """Nothing: an incomplete group is no sound."""
        return torch.empty(0, len(self._ends), dtype=torch.int64)

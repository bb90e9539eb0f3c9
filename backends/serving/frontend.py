"""The front-end thread: turns text into prompts beside the loop that generates, one piece at a time.

Text is cut into pieces lazily, so ten minutes of text hold one prompt in memory, and long text of one stream
does not keep others waiting.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from backends.serving.errors import ErrorCode, ServingError, invalid
from backends.talker import NothingToSpeakError, Prompt, SpeechRequest, Talker
from backends.text.segments import OpenText


class StreamText:
    """The text of one stream that is not yet a prompt. Used by the loop thread, once that has it.

    fed: the talker takes this stream's later text id by id as it speaks (text_mode "per_frame" and text left open);
        otherwise every piece becomes a prompt. Its pieces are what was appended; an empty one is the text's end.
    building: whether a piece is with the front-end thread. first: no piece has become a prompt yet.
    held: fed text that waits for what follows it; only the front-end thread looks at it.
    """

    def __init__(self, request: SpeechRequest, limit: int, ended: bool, fed: bool) -> None:
        self.request = request
        self.fed = fed
        self.ended = ended
        self.building = False
        self.first = True
        self.pieces: deque[str] = deque()
        self.held = ""
        self._open = OpenText("", limit)
        self.append(request.text)

    def append(self, text: str) -> None:
        if not self.fed:
            self._open.append(text)
            self.pieces.extend(self._open.take(self.ended))
            return
        if text:
            self.pieces.append(text)

    def end(self) -> None:
        self.ended = True
        self.pieces.extend([""] if self.fed else self._open.take(True))

    def take(self) -> str:
        """The next piece, which goes to the front end now."""
        self.building = True
        return self.pieces.popleft()

    @property
    def exhausted(self) -> bool:
        """No piece is left, with the front end or to come."""
        return self.ended and not self.pieces and not self.building


@dataclass(frozen=True)
class Built:
    """What the front end made of one piece: a prompt, or ids of later text, or an error; or nothing yet.

    empty: the error only says that the piece has nothing to speak.
    """

    text: StreamText
    prompt: Prompt | None = None
    text_ids: tuple[int, ...] = ()
    error: ServingError | None = None
    empty: bool = False


class FrontEnd:
    """Runs `Talker.build_prompt` in a thread of its own and hands results to `deliver` (called in that thread)."""

    def __init__(self, talker: Talker, deliver: Callable[[Built], None]) -> None:
        self._talker = talker
        self._deliver = deliver
        self._work: queue.SimpleQueue[tuple[StreamText, str, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="front-end", daemon=True)
        self._thread.start()

    def build(self, text: StreamText, piece: str) -> None:
        """Build a piece that was taken from `text`; exactly one `Built` follows."""
        self._work.put((text, piece, text.first))

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._deliver(self._build(*work))

    def _build(self, text: StreamText, piece: str, first: bool) -> Built:
        try:
            if text.fed:
                ended = not piece
                held = text.held + piece
                ready = len(held) if ended else self._talker.text_ready(text.request, held, first)
                piece, text.held = held[:ready], held[ready:]
                if first and not piece.strip():
                    if ended:
                        raise ValueError("the text ended without a word; append text before op=end")
                    text.held = held
                    return Built(text)
                if not first:
                    return Built(text, text_ids=tuple(self._talker.text_to_ids(piece)))
            return Built(text, prompt=self._talker.build_prompt(text.request, piece, first))
        except NothingToSpeakError as error:
            return Built(text, error=invalid(f"target_text: {error}"), empty=True)
        except ValueError as error:
            return Built(text, error=invalid(str(error)))
        except Exception as error:  # a bug in one stream's front end must not end the others
            failure = ServingError(ErrorCode.INTERNAL, f"the text front end failed: {error!r}")
            failure.__cause__ = error
            return Built(text, error=failure)

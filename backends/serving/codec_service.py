"""The codec process: windows in, audio out.

One loop thread owns everything: it forms batches by playback deadline, decodes them and answers. The FINAL of each
chunk's request is held until the stream's next chunk has been answered. So every open stream has, at any moment, a
request here on which it can be ended, with an error if the talker died, after its last chunk otherwise.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from backends.codec_engine import CodecEngine, CodecJob, CodecResult
from backends.frames import FrameSpec
from backends.serving.errors import ErrorCode, ServingError, invalid
from backends.serving.ledger import Ledger, Outcome
from backends.serving.ports import CodecResponder, Log, Metrics
from backends.serving.window import Window

WATCH_SECONDS = 0.01
IDLE_SECONDS = 0.02
PUBLISH_SECONDS = 1.0

StreamKey = tuple[int, int]


@dataclass(eq=False)
class _Stream:
    """One stream as the codec sees it.

    held: the last answered request, whose FINAL is owed. waiting: responder and window of chunks that are not
    answered yet, oldest first. received, answered: messages, the opening included. error: set once decoding failed.
    """

    key: StreamKey
    held: CodecResponder
    received: int = 1
    answered: int = 1
    first_sent: float | None = None
    waiting: deque[tuple[Window, CodecResponder]] = field(default_factory=deque)
    error: ServingError | None = None
    cancelled: bool = False
    chunks: int = 0
    samples: int = 0


class CodecService:
    """Serves one codec. `arrive` may be called from any thread; `run` is the loop and must run in one thread."""

    def __init__(
        self,
        spec: FrameSpec,
        engine: CodecEngine,
        ledger: Ledger,
        stuck_seconds: float,
        log: Log,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._ledger = ledger
        self._stuck_seconds = stuck_seconds
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._inbox: deque[tuple[Window, CodecResponder]] = deque()
        self._wake = threading.Condition()
        self._streams: dict[Hashable, _Stream] = {}
        self._talker_epoch = 0
        self._stopping = False
        self._counts: Counter[str] = Counter()
        self._last_watch = self._last_publish = 0.0

    def arrive(self, frames: np.ndarray, meta: np.ndarray, responder: CodecResponder) -> None:
        """Take one window as it came over the ensemble. From Triton's thread.

        A request that somebody sends to this model himself is refused: he knows no stream of the ledger.
        """
        try:
            window = Window.unpack(frames, meta)
        except ValueError as error:
            return responder.error(str(invalid(f"{error}; ask for speech at model tts")))
        if not self._ledger.knows(window.row, window.generation):
            return responder.error(str(invalid("the talker has no such stream; ask for speech at model tts")))
        with self._wake:
            self._inbox.append((window, responder))
            self._wake.notify()

    def stop(self) -> None:
        """End the loop. Safe in any thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """Serve until `stop`. An exception that leaves this method must end the process."""
        while not self._stopping:
            self._ledger.beat()
            self._receive()
            now = self._clock()
            if now - self._last_watch >= WATCH_SECONDS:
                self._last_watch = now
                self._watch(now)
            self._decode()

    # Arrivals.

    def _receive(self) -> None:
        with self._wake:
            if not self._inbox and not self._engine.pending and not self._stopping:
                self._wake.wait(IDLE_SECONDS)
            arrived = list(self._inbox)
            self._inbox.clear()
        for window, responder in arrived:
            self._take(window, responder)

    def _take(self, window: Window, responder: CodecResponder) -> None:
        key = (window.row, window.generation)
        stream = self._streams.get(key)
        if window.index != (stream.received - 1 if stream is not None else -1):
            # The stream was ended here, as its talker seemed dead.
            return responder.final()
        if stream is None:
            self._streams[key] = _Stream(key, held=responder)
            self._ledger.set_decoded(window.row, window.generation, 1)
            return
        stream.received += 1
        if stream.error is not None or stream.cancelled:
            self._answer(stream, responder)
            return
        stream.waiting.append((window, responder))
        self._engine.submit(
            CodecJob(
                key=key,
                index=window.index,
                frames=window.frames,
                context=window.context,
                start_offset=window.start,
                final=window.final,
                deadline=self._deadline(stream, window),
            )
        )

    def _deadline(self, stream: _Stream, window: Window) -> float:
        """When the listener needs this chunk: now for the first, else when all audio before it has been played."""
        if stream.first_sent is None:
            return self._clock()
        return stream.first_sent + window.start * self._spec.seconds

    # Decoding.

    def _decode(self) -> None:
        batch = self._engine.form_batch()
        if not batch:
            return
        wanted = [job for job in batch if not self._is_cancelled(job)]
        if not wanted:
            return
        for result in self._engine.decode(wanted):
            self._send(self._streams[result.job.key], result)

    def _is_cancelled(self, job: CodecJob) -> bool:
        stream = self._streams[job.key]
        if not stream.waiting[0][1].is_cancelled():
            return False
        # The ensemble never tells the talker; the ledger does.
        self._ledger.verdict[stream.key[0]] = stream.key[1]
        self._drop(stream)
        stream.cancelled = True
        return True

    def _drop(self, stream: _Stream) -> None:
        """Answer all waiting chunks of a stream without audio and forget its decoder state."""
        self._engine.close(stream.key)
        while stream.waiting:
            self._answer(stream, stream.waiting.popleft()[1])

    def _send(self, stream: _Stream, result: CodecResult) -> None:
        window, responder = stream.waiting[0]
        if result.error is not None:
            self._log.error(f"codec failed for one stream: {result.error!r}")
            stream.error = ServingError(ErrorCode.INTERNAL, "the codec failed for this stream")
            self._ledger.verdict[stream.key[0]] = -stream.key[1]
            self._drop(stream)
            return
        stream.waiting.popleft()
        if stream.first_sent is None:
            stream.first_sent = self._clock()
        self._counts["chunks_total"] += 1
        self._counts["samples_total"] += result.samples.shape[1]
        stream.chunks += 1
        stream.samples = result.first_sample + result.samples.shape[1]
        info = self._info(window.index, result.first_sample, window.new, window.finish_reason)
        # Interleaved: sample 0 of all channels, then sample 1 ...
        waveform = np.ascontiguousarray(result.samples.T).reshape(-1)
        if window.final:
            stream.held.final()
            responder.audio(waveform, info, last=True)
            stream.answered += 1
            self._release(stream)
            return
        responder.audio(waveform, info, last=False)
        self._answer(stream, responder)

    def _answer(self, stream: _Stream, responder: CodecResponder) -> None:
        """Count a message as answered; its request becomes the held one."""
        stream.held.final()
        stream.held = responder
        stream.answered += 1
        self._ledger.set_decoded(*stream.key, stream.answered)

    def _info(self, index: int, first_sample: int, frames: int, finish_reason: str | None) -> str:
        return json.dumps(
            {
                "index": index,
                "first_sample": first_sample,
                "frames": frames,
                "sample_rate": self._spec.sample_rate,
                "channels": self._spec.channels,
                "finish_reason": finish_reason,
            }
        )

    def _release(self, stream: _Stream) -> None:
        """Forget a stream whose requests have all ended."""
        self._engine.close(stream.key)
        row, generation = stream.key
        self._ledger.set_decoded(row, generation, stream.answered)
        self._ledger.released[row] = generation
        del self._streams[stream.key]

    # Watching the other side.

    def _watch(self, now: float) -> None:
        self._watch_talker()
        for stream in list(self._streams.values()):
            if not self._ledger.is_open(*stream.key):
                self._end_closed(stream)
        if now - self._last_publish >= PUBLISH_SECONDS:
            self._last_publish = now
            self._metrics.publish(self._values())

    def _end_closed(self, stream: _Stream) -> None:
        """The talker closed the row: end the held request as it says, once nothing more can arrive."""
        row = stream.key[0]
        outcome = Outcome(int(self._ledger.outcome[row]))
        if outcome is Outcome.CANCELLED:
            self._drop(stream)
        if stream.received < int(self._ledger.sent[row]) or stream.waiting:
            return
        if stream.error is not None:
            stream.held.error(str(stream.error))
        elif outcome is Outcome.FAILED:
            stream.held.error(self._ledger.message(row))
        elif stream.cancelled:
            stream.held.final()
        else:
            info = self._info(stream.chunks, stream.samples, 0, "cancelled")
            stream.held.audio(np.zeros(0, np.float32), info, last=True)
        self._release(stream)

    def _watch_talker(self) -> None:
        """End all streams with an error when the talker's process is gone, stuck, or another one than before."""
        if not self._streams:
            self._talker_epoch = self._ledger.epoch("talker")
            return
        epoch = self._ledger.epoch("talker")
        alive = (
            self._ledger.alive("talker")
            and self._ledger.silent_seconds("talker") < self._stuck_seconds
            and self._talker_epoch in (0, epoch)
        )
        self._talker_epoch = epoch
        if alive:
            return
        self._log.error(f"the talker process is gone or stuck; ending {len(self._streams)} streams")
        for stream in list(self._streams.values()):
            self._engine.close(stream.key)
            for _, responder in stream.waiting:
                stream.held.final()
                stream.held = responder
            stream.held.error(
                str(ServingError(ErrorCode.UNAVAILABLE, "the talker process died; try again in seconds"))
            )
            self._release(stream)

    def _values(self) -> dict[str, float]:
        counters: Mapping[str, float] = vars(self._engine.counters)
        return {
            **self._counts,
            **{f"graph_{name}": float(value) for name, value in counters.items()},
            "active_streams": len(self._streams),
            "pending_chunks": self._engine.pending,
        }

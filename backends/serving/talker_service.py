"""The talker process: requests in, windows out. The orchestrator of the product lives here.

One loop thread owns everything: it admits streams, steps the talker engine for all of them at once, puts each
new frame into its stream's buffer and sends a window to the codec whenever the stream's chunk policy says so.
Orchestrating in the process that generates costs an eighth of a decoupled BLS call a frame, which also crashes
the server's Python backend under load.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.serving.errors import ErrorCode, ServingError, invalid
from backends.serving.flow import FlowWindow
from backends.serving.frontend import Built, FrontEnd, StreamText
from backends.serving.ledger import GENERATION_BITS, ROWS, Ledger, Outcome
from backends.serving.ports import Log, Metrics, TalkerResponder
from backends.serving.requests import Control, Speech, read_control, read_speech
from backends.serving.window import Window
from backends.talker import Talker
from backends.talker_engine import EngineStep, ServerFull, SpeechStream, TalkerEngine
from backends.voice import VoiceConfig
from chunk_policies import ChunkPolicy, StreamBuffer

WATCH_SECONDS = 0.02
PUBLISH_SECONDS = 1.0
# A closed row whose codec never answers (it died) is taken back after this long.
ROW_LIMBO_SECONDS = 5.0


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


@dataclass(frozen=True)
class _Arrival:
    item: Speech | Control
    responder: TalkerResponder


class TalkerService:
    """Serves one talker. `arrive` may be called from any thread; `run` is the loop and must run in one thread.

    stuck_seconds: silence of the codec's loop after which its streams fail.
    """

    def __init__(
        self,
        voice: VoiceConfig,
        talker: Talker,
        engine: TalkerEngine,
        ledger: Ledger,
        log: Log,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._voice = voice
        self._talker = talker
        self._engine = engine
        self._ledger = ledger
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Arrival | Built | Callable[[], None]] = queue.SimpleQueue()
        self._front_end = FrontEnd(talker, self._inbox.put)
        self._sessions: dict[SpeechStream, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._outgoing: dict[Session, None] = {}  # sessions that may have a chunk ready, in order
        self._free_rows = deque(range(ROWS))
        self._limbo: deque[tuple[float, int, int]] = deque()
        self._codec_epoch = 0
        self._codec_alive = True
        self._waits_for_credit = False
        self._drain_deadline: float | None = None
        self._stopping = False
        self._counts: Counter[str] = Counter()
        self._last_watch = self._last_publish = 0.0

    # From Triton's threads.

    def arrive(
        self,
        inputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, Any],
        responder: TalkerResponder,
        direct: bool,
    ) -> None:
        """Take one request; bad ones are answered here and now.

        direct: the request came to this model itself, not through the ensemble.
        """
        try:
            item: Speech | Control
            if "op" in parameters:
                if not direct:
                    raise invalid("op goes to model talker, not through the ensemble")
                item = read_control(inputs, parameters, self._voice)
            else:
                if direct:
                    raise invalid(
                        "speech is asked of model tts; model talker takes only control requests (op)"
                    )
                item = read_speech(inputs, parameters, self._voice, self._talker)
        except ServingError as error:
            self._counts[f"errors_{error.code.value.lower()}_total"] += 1
            responder.error(str(error))
            return
        self._inbox.put(_Arrival(item, responder))

    def abort(self) -> None:
        """Fail every open stream at once and admit no more: the server is ending. Safe in any thread."""
        self._inbox.put(lambda: self._drain(0.0))

    def stop(self) -> None:
        """End the loop; open streams fail. Safe in any thread."""

        def stop() -> None:
            self._drain(0.0)
            self._stopping = True

        self._inbox.put(stop)

    # The loop.

    def run(self) -> None:
        """Serve until `stop`. An exception that leaves this method must end the process."""
        wait = 0.0
        while not self._stopping:
            self._ledger.beat()
            self._receive(wait)
            now = self._clock()
            if now - self._last_watch >= WATCH_SECONDS:
                self._last_watch = now
                self._watch(now)
            self._pause(now)
            step = self._engine.step()
            self._collect(step)
            self._deliver()
            self._feed()
            wait = self._wait_seconds(step)
        self._front_end.stop()

    def _wait_seconds(self, step: EngineStep) -> float:
        """How long the loop may sleep for a message: not at all while frames are being made."""
        if not step.idle:
            return 0.0
        # The codec cannot wake this loop: look at the ledger often while a stream waits for credit.
        return 0.001 if self._waits_for_credit or self._outgoing else WATCH_SECONDS

    def _receive(self, wait: float) -> None:
        try:
            message = self._inbox.get(timeout=wait) if wait else self._inbox.get_nowait()
            while True:
                if isinstance(message, Built):
                    self._built(message)
                elif isinstance(message, _Arrival):
                    if isinstance(message.item, Control):
                        self._control(message.item, message.responder)
                    else:
                        self._admit(message.item, message.responder)
                else:
                    message()
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    # Admission and text.

    def _refuse(self, responder: TalkerResponder, error: ServingError) -> None:
        self._counts[f"errors_{error.code.value.lower()}_total"] += 1
        responder.error(str(error))

    def _admit(self, speech: Speech, responder: TalkerResponder) -> None:
        self._counts["requests_total"] += 1
        if self._drain_deadline is not None:
            return self._refuse(
                responder, ServingError(ErrorCode.UNAVAILABLE, "the server is draining; try another or later")
            )
        if not self._codec_alive:
            return self._refuse(
                responder,
                ServingError(ErrorCode.UNAVAILABLE, "the codec is not running; try again in seconds"),
            )
        if speech.stream_id and speech.stream_id in self._by_id:
            return self._refuse(responder, invalid(f"stream_id {speech.stream_id!r} is speaking already"))
        fed = speech.text_open and self._talker.text_mode == "per_frame"
        text = StreamText(speech.request, self._voice.segment_chars, not speech.text_open, fed)
        stream = SpeechStream(
            request=speech.request,
            prompts=deque(),
            more_prompts=True,
            text_ids=deque(),
            text_ended=not fed,
        )
        try:
            if not self._free_rows:
                raise ServerFull(f"all {ROWS} ledger rows are in use")
            self._engine.admit(stream)
        except ServerFull as error:
            return self._refuse(responder, ServingError(ErrorCode.FULL, f"the server is full: {error}"))
        policy = speech.schedule.policy(
            clock=self._clock,
            frame_seconds=self._talker.spec.seconds,
            load=self._engine.load,
            windowed=self._talker.windowed,
        )
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
            opened=self._clock(),
            last_text=self._clock(),
            flow=FlowWindow(speech.flow_window_seconds) if speech.flow_window_seconds else None,
        )
        self._sessions[stream] = session
        if speech.stream_id:
            self._by_id[speech.stream_id] = session
        self._ledger.open_row(session.row, session.generation)
        self._send(session, self._empty_window(session, index=-1), last=False)
        self._feed_one(session)

    def _empty_window(self, session: Session, index: int) -> Window:
        spec = self._talker.spec
        empty = np.zeros((0, spec.width), np.int32 if spec.kind == "codes" else np.float32)
        return Window(session.row, session.generation, index, empty)

    def _feed(self) -> None:
        for session in list(self._sessions.values()):
            self._feed_one(session)

    def _feed_one(self, session: Session) -> None:
        """Keep one prompt prepared ahead of the talker, and pass ids of fed text at once."""
        text, stream = session.text, session.stream
        if text.pieces and not text.building and (text.fed or not stream.prompts):
            self._front_end.submit(session, text)
        if text.exhausted or (text.fed and not text.first and not text.building):
            stream.more_prompts = False
        if text.fed and text.exhausted:
            stream.text_ended = True

    def _built(self, built: Built) -> None:
        session = built.owner
        assert isinstance(session, Session)
        session.text.building = False
        if session.stream not in self._sessions:
            return
        if built.empty and not (session.text.first and session.text.exhausted):
            return self._feed_one(session)
        if built.error is not None:
            if built.error.__cause__ is not None:
                self._log.error(f"text front end: {built.error.__cause__!r}")
            return self._fail(session, built.error)
        if built.prompt is not None:
            session.text.first = False
            prefix = built.prompt.prefix_frames
            if prefix is not None and session.sent == 0:
                self._prime(session, prefix.numpy())
            session.stream.prompts.append(built.prompt)
        session.stream.text_ids.extend(built.text_ids)
        self._feed_one(session)

    def _prime(self, session: Session, prefix: np.ndarray) -> None:
        """Frames that the codec shall have heard before the first: priming context, or a window's left context."""
        frames = prefix.astype(np.int32 if self._talker.spec.kind == "codes" else np.float32)
        if not self._talker.windowed:
            session.prefix = frames
            return
        session.policy.prime(len(frames))
        for frame in frames:
            session.buffer.put(frame)

    def _control(self, control: Control, responder: TalkerResponder) -> None:
        if control.op == "ping":
            return responder.status(self._status(control))
        if control.op == "drain":
            self._drain(control.limit_seconds)
            return responder.status(self._status(control))
        session = self._by_id.get(control.stream_id)
        if control.op == "ack":
            return self._acknowledge(session, control, responder)
        if session is None:
            return self._refuse(responder, invalid(f"no open stream has stream_id {control.stream_id!r}"))
        if control.op == "cancel":
            self._cancel(session)
        elif session.text.ended:
            return self._refuse(responder, invalid(f"the text of stream {control.stream_id!r} is closed"))
        elif control.op == "append":
            session.last_text = self._clock()
            session.text.append(control.text)
            self._feed_one(session)
        else:
            session.text.end()
            if session.text.first and not (session.text.pieces or session.text.building):
                self._fail(session, invalid("the text ended without a word; append text before op=end"))
            else:
                self._feed_one(session)
        responder.status(self._status(control))

    def _acknowledge(self, session: Session | None, control: Control, responder: TalkerResponder) -> None:
        # A client takes its last audio after the stream has ended here: then there is nothing to do.
        if session is not None:
            if session.flow is None:
                return self._refuse(
                    responder,
                    invalid(f"stream {control.stream_id!r} was started without flow_window_seconds"),
                )
            position = control.position / self._talker.spec.sample_rate
            session.flow.acknowledge(position, self._sent_seconds(session), self._clock())
        responder.status(self._status(control))

    def _status(self, control: Control) -> dict[str, Any]:
        return {
            "ok": True,
            "op": control.op,
            "voice": self._voice.name,
            "active": len(self._sessions),
            "queued": self._engine.queued,
            "slots": self._voice.engine.max_slots,
            "queue": self._voice.engine.queue,
            "draining": self._drain_deadline is not None,
            "codec_alive": self._codec_alive,
        }

    # Frames to windows.

    def _pause(self, now: float) -> None:
        """Hold streams back for want of credit, of room at their clients, or of text."""
        credit = self._voice.engine.credit
        self._waits_for_credit = False
        for session in self._sessions.values():
            waits = self._ledger.in_flight(session.row, session.generation) >= credit
            self._waits_for_credit |= waits
            blocked = session.flow is not None and session.flow.blocked(self._sent_seconds(session), now)
            session.stream.paused = waits or blocked
            if blocked or session.stream.waiting_for_text:
                session.policy.observe_pause()

    def _sent_seconds(self, session: Session) -> float:
        return session.delivered * self._talker.spec.seconds

    def _collect(self, step: EngineStep) -> None:
        now = self._clock()
        self._counts["frames_total"] += len(step.streams)
        for stream, frame in zip(step.streams, step.frames, strict=True):
            session = self._sessions[stream]
            session.buffer.put(frame)
            session.policy.observe_frame(now)
            self._outgoing[session] = None
        for stream, reason, error in step.ended:
            session = self._sessions[stream]
            if error is not None:
                self._log.error(f"talker failed for one stream: {error!r}")
                self._fail(session, ServingError(ErrorCode.INTERNAL, "the talker failed for this stream"))
                continue
            session.finish_reason = reason
            session.buffer.signal_done()
            self._outgoing[session] = None

    def _deliver(self) -> None:
        """Send every window that is due and has credit."""
        credit = self._voice.engine.credit
        for session in list(self._outgoing):
            while (
                session in self._outgoing
                and session.buffer.has_chunk_ready()
                and self._ledger.in_flight(session.row, session.generation) < credit
            ):
                self._send_chunk(session)
            if session in self._outgoing and not session.buffer.has_chunk_ready():
                del self._outgoing[session]

    def _send_chunk(self, session: Session) -> None:
        chunk = session.buffer.pop_chunk()
        window = self._empty_window(session, session.sent)
        frames = np.stack(chunk.items) if chunk.items else window.frames
        context = chunk.context_items
        if session.prefix is not None:
            frames = np.concatenate([session.prefix, frames])
            context = len(session.prefix)
            session.prefix = None
        new = len(frames) - context
        window = Window(
            row=session.row,
            generation=session.generation,
            index=session.sent,
            frames=frames,
            context=context,
            start=session.delivered,
            finish_reason=session.finish_reason if chunk.is_final else None,
        )
        session.sent += 1
        session.delivered += new
        if session.first_sent is None:
            session.first_sent = self._clock()
        session.stream.deadline = session.first_sent + session.delivered * self._talker.spec.seconds
        self._counts["chunks_total"] += 1
        self._send(session, window, last=chunk.is_final)
        if chunk.is_final:
            self._counts[f"finished_{session.finish_reason}_total"] += 1
            self._close(session, Outcome.COMPLETE)

    def _send(self, session: Session, window: Window, last: bool) -> None:
        # The codec may see the window before this call returns, so the count comes first.
        self._ledger.sent[session.row] += 1
        session.responder.window(window, last)

    # Ends.

    def _close(self, session: Session, outcome: Outcome, message: str = "") -> None:
        self._ledger.close_row(session.row, outcome, message)
        del self._sessions[session.stream]
        self._outgoing.pop(session, None)
        self._by_id.pop(session.speech.stream_id, None)
        self._limbo.append((self._clock(), session.row, session.generation))

    def _cancel(self, session: Session) -> None:
        """Stop at once. The codec, which holds the stream's last request, tells the client that it was cancelled."""
        self._counts["finished_cancelled_total"] += 1
        self._engine.cancel(session.stream)
        session.responder.final()
        self._close(session, Outcome.CANCELLED)

    def _fail(self, session: Session, error: ServingError) -> None:
        """End with an error. It leaves from the codec, which holds the last request: an error from here would leak
        the request in Triton while any of its windows is unanswered."""
        self._counts[f"errors_{error.code.value.lower()}_total"] += 1
        self._engine.cancel(session.stream)
        if self._codec_alive:
            session.responder.final()
        else:
            session.responder.error(str(error))
        self._close(session, Outcome.FAILED, str(error))

    def _drain(self, limit_seconds: float) -> None:
        self._drain_deadline = self._clock() + limit_seconds
        if limit_seconds == 0:
            self._fail_all(ServingError(ErrorCode.UNAVAILABLE, "the server is shutting down"))

    def _fail_all(self, error: ServingError) -> None:
        for session in list(self._sessions.values()):
            self._fail(session, error)

    # Watching the other side.

    def _watch(self, now: float) -> None:
        self._watch_codec()
        for session in list(self._sessions.values()):
            verdict = int(self._ledger.verdict[session.row])
            session.seen = session.seen or self._ledger.seen(session.row, session.generation)
            if verdict == session.generation:
                self._counts["disconnected_total"] += 1
                self._cancel(session)
            elif verdict == -session.generation:
                self._fail(session, ServingError(ErrorCode.INTERNAL, "the codec failed for this stream"))
            elif not session.seen and now - session.opened > self._voice.limits.stuck_seconds:
                self._disown(session)
            elif (
                not session.text.ended
                and session.stream.waiting_for_text
                and now - session.last_text > self._voice.limits.idle_seconds
            ):
                limit = self._voice.limits.idle_seconds
                self._fail(
                    session,
                    ServingError(
                        ErrorCode.CANCELLED, f"no text came for {limit:g} s; use op=end to close the text"
                    ),
                )
            elif session.flow is not None and session.flow.stalled(now) > self._voice.limits.stalled_seconds:
                limit = self._voice.limits.stalled_seconds
                self._counts["stalled_total"] += 1
                self._fail(
                    session,
                    ServingError(
                        ErrorCode.CANCELLED,
                        f"the client took no audio for {limit:g} s (limits.stalled_seconds), "
                        f"{session.flow.window:g} s of it unread; acknowledge by op=ack what is taken",
                    ),
                )
        if self._drain_deadline is not None and now >= self._drain_deadline and self._sessions:
            self._fail_all(ServingError(ErrorCode.UNAVAILABLE, "the server is shutting down"))
        while self._limbo and self._row_is_free(now, *self._limbo[0]):
            row = self._limbo.popleft()[1]
            self._ledger.retire_row(row)
            self._free_rows.append(row)
        if now - self._last_publish >= PUBLISH_SECONDS:
            self._last_publish = now
            self._metrics.publish(self._values())

    def _row_is_free(self, now: float, closed: float, row: int, generation: int) -> bool:
        return int(self._ledger.released[row]) == generation or now - closed > ROW_LIMBO_SECONDS

    def _disown(self, session: Session) -> None:
        """The codec never saw the opening: somebody asked this model for the ensemble's outputs himself."""
        error = invalid("the codec does not know this stream; ask for speech at model tts")
        self._counts[f"errors_{error.code.value.lower()}_total"] += 1
        self._engine.cancel(session.stream)
        session.responder.error(str(error))
        self._close(session, Outcome.CANCELLED)

    def _watch_codec(self) -> None:
        """Fail all streams when the codec's process is gone, stuck, or another one than before."""
        alive = (
            self._ledger.alive("codec")
            and self._ledger.silent_seconds("codec") < self._voice.limits.stuck_seconds
        )
        epoch = self._ledger.epoch("codec")
        replaced = self._codec_epoch not in (0, epoch)
        self._codec_epoch = epoch
        if self._codec_alive and (replaced or not alive):
            self._codec_alive = False
            self._log.error(f"the codec process is gone or stuck; failing {len(self._sessions)} streams")
            self._fail_all(
                ServingError(ErrorCode.UNAVAILABLE, "the codec process died; try again in seconds")
            )
        if alive and not self._codec_alive:
            self._log.info("the codec process is back")
        self._codec_alive = alive

    def _values(self) -> dict[str, float]:
        return {
            **self._counts,
            "active_streams": len(self._sessions),
            "queued_streams": self._engine.queued,
        }

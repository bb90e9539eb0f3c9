"""The talker process: requests in, windows out.

One loop thread owns everything: it admits streams, steps the talker engine for all of them at once and hands the
frames to the orchestrator, which sends windows to the codec. It also watches the codec, over the ledger.
"""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.serving.errors import ErrorCode, ServingError, invalid
from backends.serving.frontend import Built, FrontEnd, StreamText
from backends.serving.ledger import Ledger, Outcome
from backends.serving.orchestrator import Orchestrator
from backends.serving.ports import Log, Metrics, TalkerResponder
from backends.serving.requests import Control, Speech, read_control, read_speech
from backends.serving.sessions import Session, Sessions
from backends.talker import Talker
from backends.talker_engine import EngineStep, ServerFull, SpeechStream, TalkerEngine
from backends.voice import VoiceConfig

WATCH_SECONDS = 0.02
PUBLISH_SECONDS = 1.0
# Stuck times after which a stream that the codec never heard of is given up; a busy codec hears much sooner.
UNSEEN_FACTOR = 2.0


@dataclass(frozen=True)
class _Ask:
    """A request to speak, on its way to the loop."""

    speech: Speech
    text: StreamText
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
        key: str = "",
    ) -> None:
        self._voice = voice
        self._talker = talker
        self._engine = engine
        self._ledger = ledger
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._key = key
        self._inbox: queue.SimpleQueue[_Ask | Built | Callable[[], None]] = queue.SimpleQueue()
        self._front_end = FrontEnd(talker, self._inbox.put)
        self._sessions = Sessions(ledger)
        self._codec_epoch = 0
        self._codec_alive = True
        self._waits_for_credit = False
        self._drain_deadline: float | None = None
        self._stopping = False
        self._counts: Counter[str] = Counter()
        self._orchestrator = Orchestrator(
            talker.spec, talker.windowed, ledger, voice.engine.credit, self._counts, clock
        )
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
            if "op" in parameters:
                if not direct:
                    raise invalid("op goes to model talker, not through the ensemble")
                control = read_control(inputs, parameters, self._voice, self._key)
                self._inbox.put(lambda: self._control(control, responder))
            else:
                if direct:
                    raise invalid(
                        "speech is asked of model tts; model talker takes only control requests (op)"
                    )
                self._ask(read_speech(inputs, parameters, self._voice, self._talker), responder)
        except ServingError as error:
            self._counts[f"errors_{error.code.value.lower()}_total"] += 1
            responder.error(str(error))
            return
        except Exception as error:
            # Triton hands over several requests at once: a bug in reading one must not fail the others.
            self._log.error(f"a request could not be read: {error!r}")
            responder.error(str(ServingError(ErrorCode.INTERNAL, "the request could not be read")))

    def _ask(self, speech: Speech, responder: TalkerResponder) -> None:
        """Hand a request to the loop, and its first piece of text to the front end at once: the loop may be in the
        middle of a step, and the stream would join one step later than it could."""
        fed = speech.text_open and self._talker.text_mode == "per_frame"
        text = StreamText(speech.request, self._voice.segment_chars, not speech.text_open, fed)
        room = self._engine.free_slots or self._engine.queued < self._voice.engine.queue
        piece = text.take() if text.pieces and room else None
        self._inbox.put(_Ask(speech, text, responder))  # before its prompt can come back
        if piece is not None:
            self._front_end.build(text, piece)

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
            for session in self._orchestrator.deliver():
                self._counts[f"finished_{session.finish_reason}_total"] += 1
                self._close(session, Outcome.COMPLETE)
            for session in self._sessions:
                self._feed(session)
            wait = self._wait_seconds(step)
        self._front_end.stop()

    def _wait_seconds(self, step: EngineStep) -> float:
        """How long the loop may sleep for a message: not at all while frames are being made."""
        if not step.idle:
            return 0.0
        # The codec cannot wake this loop: look at the ledger often while a stream waits for credit.
        return 0.001 if self._waits_for_credit or self._orchestrator.waiting else WATCH_SECONDS

    def _receive(self, wait: float) -> None:
        try:
            message = self._inbox.get(timeout=wait) if wait else self._inbox.get_nowait()
            while True:
                if isinstance(message, Built):
                    self._built(message)
                elif isinstance(message, _Ask):
                    self._admit(message.speech, message.text, message.responder)
                else:
                    message()
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    # Admission and text.

    def _refuse(self, responder: TalkerResponder, error: ServingError) -> None:
        self._counts[f"errors_{error.code.value.lower()}_total"] += 1
        responder.error(str(error))

    def _admit(self, speech: Speech, text: StreamText, responder: TalkerResponder) -> None:
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
        if self._sessions.named(speech.stream_id) is not None:
            return self._refuse(responder, invalid(f"stream_id {speech.stream_id!r} is speaking already"))
        stream = SpeechStream(
            request=speech.request,
            prompts=deque(),
            more_prompts=True,
            text_ids=deque(),
            text_ended=not text.fed,
            # A first chunk is due at once. Without it new streams would always go before the next piece of a
            # long text, which never got its turn while enough of them came.
            deadline=self._clock(),
        )
        try:
            if not self._sessions.has_row:
                raise ServerFull("all ledger rows are in use; try again later")
            self._engine.admit(stream)
        except ServerFull as error:
            return self._refuse(responder, ServingError(ErrorCode.FULL, f"the server is full: {error}"))
        policy = speech.schedule.policy(
            clock=self._clock,
            frame_seconds=self._talker.spec.seconds,
            load=self._engine.load,
            windowed=self._talker.windowed,
        )
        session = self._sessions.open(speech, responder, stream, text, policy, self._clock())
        self._orchestrator.announce(session)
        self._feed(session)

    def _feed(self, session: Session) -> None:
        """Keep one prompt prepared ahead of the talker, and pass ids of fed text at once."""
        text, stream = session.text, session.stream
        if text.pieces and not text.building and (text.fed or not stream.prompts):
            self._front_end.build(text, text.take())
        if text.exhausted or (text.fed and not text.first and not text.building):
            stream.more_prompts = False
        if text.fed and text.exhausted:
            stream.text_ended = True

    def _built(self, built: Built) -> None:
        built.text.building = False
        session = self._sessions.reading(built.text)
        if session is None:  # it was refused, or has ended meanwhile
            return
        if built.empty and not (session.text.first and session.text.exhausted):
            return self._feed(session)
        if built.error is not None:
            if built.error.__cause__ is not None:
                self._log.error(f"text front end: {built.error.__cause__!r}")
            return self._fail(session, built.error)
        if built.prompt is not None:
            session.text.first = False
            prefix = built.prompt.prefix_frames
            if prefix is not None and session.sent == 0:
                self._orchestrator.prime(session, prefix.numpy())
            session.stream.prompts.append(built.prompt)
        session.stream.text_ids.extend(built.text_ids)
        self._feed(session)

    def _control(self, control: Control, responder: TalkerResponder) -> None:
        if control.op == "ping":
            return responder.status(self._status(control))
        if control.op == "drain":
            self._drain(control.limit_seconds)
            return responder.status(self._status(control))
        session = self._sessions.named(control.stream_id)
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
            self._feed(session)
        else:
            session.text.end()
            if session.text.first and not (session.text.pieces or session.text.building):
                self._fail(session, invalid("the text ended without a word; append text before op=end"))
            else:
                self._feed(session)
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
            session.flow.acknowledge(position, self._orchestrator.sent_seconds(session), self._clock())
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

    # Frames.

    def _pause(self, now: float) -> None:
        """Hold streams back for want of credit, of room at their clients, or of text."""
        self._waits_for_credit = False
        for session in self._sessions:
            waits = self._orchestrator.out_of_credit(session)
            self._waits_for_credit |= waits
            sent = self._orchestrator.sent_seconds(session)
            blocked = session.flow is not None and session.flow.blocked(sent, now)
            session.stream.paused = waits or blocked
            if blocked or session.stream.waiting_for_text:
                session.policy.observe_pause()

    def _collect(self, step: EngineStep) -> None:
        now = self._clock()
        self._counts["frames_total"] += len(step.streams)
        for stream, frame in zip(step.streams, step.frames, strict=True):
            self._orchestrator.put(self._sessions.of(stream), frame, now)
        for stream, reason, error in step.ended:
            session = self._sessions.of(stream)
            if error is None:
                self._orchestrator.end(session, reason)
                continue
            self._log.error(f"talker failed for one stream: {error!r}")
            self._fail(session, ServingError(ErrorCode.INTERNAL, "the talker failed for this stream"))

    # Ends.

    def _close(self, session: Session, outcome: Outcome, message: str = "") -> None:
        self._orchestrator.forget(session)
        self._sessions.close(session, outcome, message, self._clock())

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
        for session in self._sessions:
            self._fail(session, error)

    # Watching the other side.

    def _watch(self, now: float) -> None:
        self._watch_codec()
        for session in self._sessions:
            self._watch_session(session, now)
        if self._drain_deadline is not None and now >= self._drain_deadline and self._sessions:
            self._fail_all(ServingError(ErrorCode.UNAVAILABLE, "the server is shutting down"))
        self._sessions.reclaim_rows(now)
        if now - self._last_publish >= PUBLISH_SECONDS:
            self._last_publish = now
            self._metrics.publish(self._values())

    def _watch_session(self, session: Session, now: float) -> None:
        """End the stream if the codec says so, or if it has waited too long for its text or its client."""
        limits = self._voice.limits
        verdict = int(self._ledger.verdict[session.row])
        session.seen = session.seen or self._ledger.seen(session.row, session.generation)
        waiting = not session.text.ended and session.stream.waiting_for_text
        if verdict == session.generation:
            self._counts["disconnected_total"] += 1
            self._cancel(session)
        elif verdict == -session.generation:
            self._fail(session, ServingError(ErrorCode.INTERNAL, "the codec failed for this stream"))
        elif not session.seen and now - session.opened > UNSEEN_FACTOR * limits.stuck_seconds:
            self._disown(session)
        elif waiting and now - session.last_text > limits.idle_seconds:
            self._give_up(
                session, f"no text came for {limits.idle_seconds:g} s; use op=end to close the text"
            )
        elif session.flow is not None and session.flow.stalled(now) > limits.stalled_seconds:
            self._counts["stalled_total"] += 1
            self._give_up(
                session,
                f"the client took no audio for {limits.stalled_seconds:g} s (limits.stalled_seconds), "
                f"{session.flow.window:g} s of it unread; acknowledge by op=ack what is taken",
            )

    def _give_up(self, session: Session, reason: str) -> None:
        self._fail(session, ServingError(ErrorCode.CANCELLED, reason))

    def _disown(self, session: Session) -> None:
        """The codec never saw the opening: somebody asked this model for the ensemble's outputs himself."""
        error = ServingError(
            ErrorCode.UNAVAILABLE, "the codec has not seen this stream; ask for speech at model tts"
        )
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

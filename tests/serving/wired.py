"""Both services wired as the ensemble wires them, without Triton, with its rules checked at every call.

What Triton demands, measured on the real server: a request ends exactly once; an error may leave only when every
other request of the same stream has ended, else the stream's request leaks for good.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from backends.codec_engine import CodecEngine
from backends.graphs import EagerCapture
from backends.serving.codec_service import CodecService
from backends.serving.ledger import Ledger
from backends.serving.talker_service import TalkerService
from backends.serving.window import Window
from backends.talker_engine import TalkerEngine
from backends.voice import EngineConfig, LimitConfig, VoiceConfig
from chunk_policies import ChunkSchedule

# One bucket each: these tests are about streams, not about shapes.
ENGINE = EngineConfig(
    max_slots=4,
    queue=4,
    max_length=512,
    talker_batch_buckets=(4,),
    codec_batch_buckets=(4,),
    length_buckets=(512,),
)


class Silent:
    """Log and metrics that keep what they are told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[str, float] = {}

    def info(self, message: str) -> None:
        self.lines.append(message)

    warning = error = info

    def publish(self, values: Mapping[str, float]) -> None:
        self.values = dict(values)


@dataclass(eq=False)
class Call:
    """One client request through both models: what arrived, and the state of every request inside.

    orphaned: the test took the talker away; its own request never ends, which no error can wait for.
    """

    wires: Wires
    chunks: list[tuple[np.ndarray, dict[str, Any]]] = field(default_factory=list)
    error: str | None = None
    cancelled: bool = False
    orphaned: bool = False
    open_requests: int = 1  # the talker's, plus one for each window
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)

    def opened(self) -> None:
        with self.lock:
            self.open_requests += 1

    def ended(self, error: str | None = None) -> None:
        with self.lock:
            self.open_requests -= 1
            assert self.open_requests >= 0
            if error is not None:
                assert self.error is None, "two errors for one stream"
                assert self.open_requests == int(self.orphaned), (
                    "an error left while other requests were open: a leak"
                )
                self.error = error
            if self.open_requests == 0:
                self.done.set()

    def wait(self, seconds: float = 20.0) -> Call:
        assert self.done.wait(seconds), f"the stream hangs; {self.open_requests} requests are open"
        return self

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate([samples for samples, _ in self.chunks])

    @property
    def finish_reason(self) -> str | None:
        return self.chunks[-1][1]["finish_reason"] if self.chunks else None


class _Answer:
    """A response sender: one thread, one end."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._thread: int | None = None
        self._over = False

    def _use(self, end: bool) -> None:
        thread = threading.get_ident()
        assert self._thread in (None, thread), "a response sender was used by two threads"
        self._thread = thread
        assert not self._over, "a response was sent after the end"
        self._over = end

    def error(self, text: str) -> None:
        self._use(True)
        self.call.ended(text)

    def final(self) -> None:
        self._use(True)
        self.call.ended()


class TalkerAnswer(_Answer):
    def window(self, window: Window, last: bool) -> None:
        self._use(last)
        self.call.opened()
        frames, meta = window.pack()
        if self.call.wires.codec is not None:
            self.call.wires.codec.arrive(frames[None], meta[None], CodecAnswer(self.call))
        if last:
            self.call.ended()

    def status(self, status: Mapping[str, Any]) -> None:
        self._use(True)
        self.call.chunks.append((np.zeros(0), {"finish_reason": None, **status}))
        self.call.ended()


class CodecAnswer(_Answer):
    def audio(self, waveform: np.ndarray, info: str, last: bool) -> None:
        self._use(last)
        assert waveform.dtype == np.float32 and waveform.ndim == 1
        self.call.chunks.append((waveform, json.loads(info)))
        if last:
            self.call.ended()

    def is_cancelled(self) -> bool:
        return self.call.cancelled


class Wires:
    """A talker service and a codec service, each with its loop in a thread; a context manager."""

    def __init__(
        self,
        family: Any,
        ledger: Path,
        stream: Mapping[str, Any] | None = None,
        engine: EngineConfig = ENGINE,
        limits: LimitConfig = LimitConfig(),  # noqa: B008 - frozen
        with_codec: bool = True,
    ) -> None:
        self.family = family
        self.voice = VoiceConfig(
            name="fake",
            family="fake",
            checkpoint=ledger,
            source=ledger,
            stream=ChunkSchedule.from_mapping(
                stream or {"codec_chunk_ramp": [1, 2, 4], "codec_chunk_frames": 4}
            ),
            engine=engine,
            limits=limits,
        )
        self.talker_ledger = Ledger(ledger, "talker")
        self.codec_ledger = Ledger(ledger, "codec") if with_codec else None
        self.log = Silent()
        self.talker_model = family.talker()
        self.talker_engine = TalkerEngine(self.talker_model, engine, capture=EagerCapture())
        self.talker_engine.warm_up(lambda done, total: None)
        self.talker = TalkerService(
            self.voice, self.talker_model, self.talker_engine, self.talker_ledger, self.log, Silent()
        )
        self.codec: CodecService | None = None
        if self.codec_ledger is not None:
            self.codec_engine = CodecEngine(
                family.codec(), engine, self.voice.stream.frame_sizes("state"), capture=EagerCapture()
            )
            self.codec_engine.warm_up(lambda done, total: None)
            self.codec = CodecService(
                family.spec, self.codec_engine, self.codec_ledger, limits.stuck_seconds, self.log, Silent()
            )
        self.failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._guarded, args=(service.run,))
            for service in (self.talker, self.codec)
            if service is not None
        ]

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Wires:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.talker.stop()
        if self.codec is not None:
            self.codec.stop()
        for thread in self._threads:
            thread.join(10)
        self.talker_ledger.close()
        if self.codec_ledger is not None:
            self.codec_ledger.close()
        if self.failure is not None:
            raise self.failure

    def speak(self, text: str, direct: bool = False, **parameters: Any) -> Call:
        call = Call(self)
        inputs = {"target_text": np.array([[text.encode()]], np.object_)}
        self.talker.arrive(inputs, parameters, TalkerAnswer(call), direct)
        return call

    def control(self, op: str, stream_id: str = "", text: str = "", **parameters: Any) -> Call:
        if stream_id:
            parameters["stream_id"] = stream_id
        return self.speak(text, direct=True, op=op, **parameters)

"""The Triton models of the peers, by what they do. Each model.py under the repositories names one of these.

Talker engine, paced talker, paced codec, chunk schedule and signal are the product's own: only the
orchestration around them differs. Imported in Triton's Python stubs only.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from backends.families.paced import SAMPLES_PER_FRAME, Pace, frame_spec, machine_of, sound
from backends.family import load_family
from backends.graphs import capture_for
from backends.serving.settings import Settings
from backends.talker import SpeechRequest
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.text.segments import split_text
from chunk_policies import StreamBuffer

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
POLL_SECONDS = 0.02


def respond(*tensors: tuple[str, np.ndarray]) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors])


def read(request: Any, name: str) -> np.ndarray:
    array: np.ndarray = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
    return array


class FrameTalker:
    """Decoupled: text in, one response a frame. Streams are batched continuously, as TensorRT-LLM's model
    does."""

    def initialize(self, args: dict[str, Any]) -> None:
        settings = Settings.from_environment()
        self.voice = settings.voice
        self.talker = load_family(self.voice.family).load_talker(self.voice, settings.device)
        self.engine = TalkerEngine(self.talker, self.voice.engine, capture=capture_for(settings.device))
        self.engine.warm_up(lambda done, total: None)
        self.inbox: queue.SimpleQueue[tuple[SpeechStream, Any]] = queue.SimpleQueue()
        self.senders: dict[SpeechStream, Any] = {}
        self.stopping = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            text = read(request, "text").reshape(-1)[0].decode()
            speech = SpeechRequest(text, seed=int(read(request, "seed").reshape(-1)[0]), max_frames=1_000_000)
            pieces = split_text(text, self.voice.segment_chars)
            prompts = deque(self.talker.build_prompt(speech, piece, i == 0) for i, piece in enumerate(pieces))
            stream = SpeechStream(speech, prompts=prompts, more_prompts=False, text_ended=True)
            self.inbox.put((stream, request.get_response_sender()))

    def run(self) -> None:
        wait = 0.0
        while not self.stopping:
            self.receive(wait)
            step = self.engine.step()
            for stream, frame in zip(step.streams, step.frames, strict=True):
                self.senders[stream].send(respond(("frame", frame)))
            for stream, _, _ in step.ended:
                self.senders.pop(stream).send(flags=FINAL)
            wait = 0.001 if step.idle else 0.0

    def receive(self, wait: float) -> None:
        try:
            item = self.inbox.get(timeout=wait) if wait else self.inbox.get_nowait()
            while True:
                stream, sender = item
                self.senders[stream] = sender
                self.engine.admit(stream)
                item = self.inbox.get_nowait()
        except queue.Empty:
            return

    def finalize(self) -> None:
        self.stopping = True
        self.thread.join(5.0)


class ChunkCodec:
    """Frames in, audio out. Rows that reach one `execute` are one call a number of frames; where Triton does
    not batch, that is a row a call."""

    def initialize(self, args: dict[str, Any]) -> None:
        voice = Settings.from_environment().voice
        self.pace = Pace(machine_of(voice), 1)

    def execute(self, requests: list[Any]) -> list[Any]:
        windows = [read(request, "frames").reshape(-1, 4) for request in requests]
        sizes: dict[int, int] = {}
        for window in windows:
            sizes[len(window)] = sizes.get(len(window), 0) + 1
        for frames, rows in sizes.items():
            self.pace.decode(rows, frames)
        shape = (1, -1) if self.batched else (-1,)
        answers = []
        for request, window in zip(requests, windows, strict=True):
            answers.append(
                respond(
                    ("waveform", sound(window).reshape(shape)),
                    ("chunk_info", np.array(read(request, "info"), np.object_)),
                )
            )
        return answers

    batched = True


class UnbatchedCodec(ChunkCodec):
    """The same without batching: one request a call."""

    batched = False


class Streams:
    """What both orchestrators do with a stream's frames: cut them into chunks by the voice's schedule."""

    def __init__(self) -> None:
        self.voice = Settings.from_environment().voice
        self.spec = frame_spec(machine_of(self.voice))

    def buffer(self) -> StreamBuffer[np.ndarray]:
        return StreamBuffer(self.voice.stream.policy(frame_seconds=self.spec.seconds))

    def talk(self, request: Any) -> Iterator[np.ndarray]:
        """Call the talker through BLS; its frames one by one."""
        parameters = json.loads(request.parameters() or "{}")
        text = read(request, "target_text").reshape(-1)[:1]
        call = pb_utils.InferenceRequest(
            model_name="talker",
            requested_output_names=["frame"],
            inputs=[
                pb_utils.Tensor("text", text),
                pb_utils.Tensor("seed", np.array([int(parameters.get("seed", 0))], np.int64)),
            ],
        )
        for response in call.exec(decoupled=True):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            for tensor in response.output_tensors():
                yield tensor.as_numpy()

    def info(self, index: int, start: int, frames: int, last: bool) -> np.ndarray:
        text = json.dumps(
            {
                "index": index,
                "first_sample": start * SAMPLES_PER_FRAME,
                "frames": frames,
                "sample_rate": self.spec.sample_rate,
                "channels": 1,
                "finish_reason": "stop" if last else None,
            }
        )
        return np.array([text.encode()], np.object_)


class ThreadPerStream:
    """Decoupled: returns at once; a thread a stream takes frames from the talker and sends windows to the
    codec, which is the next step of an ensemble."""

    def initialize(self, args: dict[str, Any]) -> None:
        self.streams = Streams()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            threading.Thread(target=self.serve, args=(request, sender), daemon=True).start()

    def serve(self, request: Any, sender: Any) -> None:
        buffer = self.streams.buffer()
        sent = 0
        for frame in self.streams.talk(request):
            buffer.put(frame)
            if buffer.has_chunk_ready():
                sent += self.send(buffer, sender, sent)
        buffer.signal_done()
        while buffer.has_chunk_ready():
            sent += self.send(buffer, sender, sent)

    def send(self, buffer: StreamBuffer[np.ndarray], sender: Any, sent: int) -> int:
        chunk = buffer.pop_chunk()
        frames = np.stack(chunk.items) if chunk.items else np.zeros((0, 4), np.int32)
        info = self.streams.info(chunk.chunk_index, sent, len(frames), chunk.is_final)
        sender.send(respond(("frames", frames), ("info", info)), flags=FINAL if chunk.is_final else 0)
        return len(frames)


class PollPerRequest:
    """Decoupled, but `execute` blocks until its request is spoken: as many streams as instances. A thread
    collects tokens one by one from a decoupled call to the language model; the main thread looks every 20 ms
    whether they are enough for a chunk and then calls the vocoder, one request a call."""

    def initialize(self, args: dict[str, Any]) -> None:
        self.streams = Streams()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.serve(request, request.get_response_sender())

    def serve(self, request: Any, sender: Any) -> None:
        tokens: deque[np.ndarray] = deque()
        done = threading.Event()

        def collect() -> None:
            try:
                for frame in self.streams.talk(request):
                    tokens.append(frame)
            finally:
                done.set()

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        buffer = self.streams.buffer()
        sent = 0
        while True:
            ended = done.is_set()
            while tokens:
                buffer.put(tokens.popleft())
            if ended:
                buffer.signal_done()
            if buffer.has_chunk_ready():
                sent += self.send(buffer, sender, sent)
            elif ended:
                break
            else:
                time.sleep(POLL_SECONDS)
        thread.join()
        sender.send(flags=FINAL)

    def send(self, buffer: StreamBuffer[np.ndarray], sender: Any, sent: int) -> int:
        chunk = buffer.pop_chunk()
        frames = np.stack(chunk.items) if chunk.items else np.zeros((0, 4), np.int32)
        call = pb_utils.InferenceRequest(
            model_name="codec",
            requested_output_names=["waveform", "chunk_info"],
            inputs=[
                pb_utils.Tensor("frames", frames),
                pb_utils.Tensor(
                    "info", self.streams.info(chunk.chunk_index, sent, len(frames), chunk.is_final)
                ),
            ],
        )
        response = call.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        sender.send(respond(*((t.name(), t.as_numpy()) for t in response.output_tensors())))
        return len(frames)

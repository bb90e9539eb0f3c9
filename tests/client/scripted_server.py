"""An in-process gRPC server that speaks Triton's ModelStreamInfer and answers by script.

For the edges of the protocol that a healthy server does not show: silence, death, holes, errors in every
place. The client talks to it over a real socket with real gRPC.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

RATE = 24_000


def audio(
    request: pb.ModelInferRequest,
    index: int,
    first_sample: int,
    samples: np.ndarray,
    *,
    finish_reason: str | None = None,
    final: bool = False,
    rate: int = RATE,
    **more: Any,
) -> pb.ModelStreamInferResponse:
    """A data response as the ensemble sends it; samples [n] or [n, channels]."""
    info = {
        "index": index,
        "first_sample": first_sample,
        "frames": 1,
        "sample_rate": rate,
        "channels": samples.shape[1] if samples.ndim == 2 else 1,
        "finish_reason": finish_reason,
        **more,
    }
    text = json.dumps(info).encode()
    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.outputs.add(name="waveform", datatype="FP32", shape=[1, samples.size])
    response.raw_output_contents.append(samples.astype("<f4").tobytes())
    response.outputs.add(name="chunk_info", datatype="BYTES", shape=[1, 1])
    response.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
    response.parameters["triton_final_response"].bool_param = final
    return pb.ModelStreamInferResponse(infer_response=response)


def final(request: pb.ModelInferRequest) -> pb.ModelStreamInferResponse:
    """The empty final response."""
    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.parameters["triton_final_response"].bool_param = True
    return pb.ModelStreamInferResponse(infer_response=response)


def error(
    request: pb.ModelInferRequest, message: str, *, scheduled: bool = True
) -> pb.ModelStreamInferResponse:
    """An error; requests that are refused before they are scheduled carry no final flag."""
    response = pb.ModelStreamInferResponse(error_message=message)
    response.infer_response.id = request.id
    if scheduled:
        response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


def status(request: pb.ModelInferRequest, **fields: Any) -> pb.ModelStreamInferResponse:
    """The talker's answer to a control request, without the final that follows."""
    text = json.dumps(fields).encode()
    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.outputs.add(name="status", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
    return pb.ModelStreamInferResponse(infer_response=response)


def text_of(request: pb.ModelInferRequest) -> str:
    names = [tensor.name for tensor in request.inputs]
    return request.raw_input_contents[names.index("target_text")][4:].decode()


def parameter(request: pb.ModelInferRequest, name: str) -> Any:
    value = request.parameters[name]
    return getattr(value, value.WhichOneof("parameter_choice"))


def speech(
    request: pb.ModelInferRequest, chunks: int, *, chunk_samples: int = 480, merged_final: bool = False
) -> Iterator[pb.ModelStreamInferResponse]:
    """A healthy stream: sample k of the stream has the value (k mod 1000) / 1000, so order can be checked."""
    for index in range(chunks):
        last = index == chunks - 1
        ramp = (np.arange(chunk_samples) + index * chunk_samples) % 1000 / 1000
        yield audio(
            request,
            index,
            index * chunk_samples,
            ramp,
            finish_reason="stop" if last else None,
            final=last and merged_final,
        )
    if not merged_final or not chunks:
        yield final(request)


Script = Callable[["Stream", pb.ModelInferRequest], Iterator[pb.ModelStreamInferResponse]]


@dataclass
class Stream:
    """What a script sees of its stream: text that was appended, positions that were acknowledged, and whether
    it was ended or cancelled."""

    server: ScriptedServer
    context: grpc.ServicerContext
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    appended: list[str] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)

    def silence(self, seconds: float = 30.0) -> bool:
        """Say nothing until cancelled or the call is gone. True if op=cancel came."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.context.is_active():
            if self.cancelled.wait(0.01):
                return True
        return False


class ScriptedServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers model `tts` by `script` and control requests like the talker does. `log` holds what arrived."""

    def __init__(self, script: Script | None = None, port: int = 0) -> None:
        self.script: Script = script or (lambda stream, request: speech(request, 3))
        self.log: list[pb.ModelInferRequest] = []
        self.closes_early = (
            False  # end the call with the first answer, whether the client has finished or not
        )
        self.calls_open = 0
        self.calls_broken_off = 0
        self.control: Callable[[pb.ModelInferRequest], Iterator[pb.ModelStreamInferResponse]] | None = None
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=256))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"localhost:{port}")
        self.url = f"localhost:{self.port}"
        self._server.start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Die at once: open calls are cut off."""
        self._server.stop(grace=None).wait()

    def operations(self) -> list[str]:
        """Control operations in the order of their arrival."""
        with self._lock:
            return [parameter(request, "op") for request in self.log if "op" in request.parameters]

    def requests(self) -> list[pb.ModelInferRequest]:
        """Speech requests in the order of their arrival."""
        with self._lock:
            return [request for request in self.log if "op" not in request.parameters]

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> pb.ModelReadyResponse:  # noqa: N802
        return pb.ModelReadyResponse(ready=request.name == "tts")

    def ModelStreamInfer(  # noqa: N802
        self, request_iterator: Iterator[pb.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ModelStreamInferResponse]:
        """Requests of one call run at the same time, as on Triton; the call ends when all are answered."""
        with self._lock:
            self.calls_open += 1
        answers: list[pb.ModelStreamInferResponse | None] = []
        arrived = threading.Condition()
        running, answered = 1, False

        def answer(responses: Iterator[pb.ModelStreamInferResponse]) -> None:
            nonlocal running
            for response in responses:
                with arrived:
                    answers.append(response)
                    arrived.notify()
            with arrived:
                running -= 1
                arrived.notify()

        def read() -> None:
            nonlocal running
            try:
                for request in request_iterator:
                    with self._lock:
                        self.log.append(request)
                    responses = self._answer(request, context)
                    with arrived:
                        running += 1
                    threading.Thread(target=answer, args=(responses,), daemon=True).start()
            except grpc.RpcError:
                pass  # the client broke the call off
            answer(iter(()))

        threading.Thread(target=read, daemon=True).start()
        try:
            while context.is_active():
                with arrived:
                    while not answers and running and context.is_active():
                        if self.closes_early and running == 1 and answered:
                            return
                        arrived.wait(0.02)
                    if not answers and not running:
                        return
                    answered = answered or bool(answers)
                    ready = answers[:]
                    answers.clear()
                yield from ready
        finally:
            with self._lock:
                self.calls_open -= 1
                self.calls_broken_off += not context.is_active()

    def _answer(
        self, request: pb.ModelInferRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ModelStreamInferResponse]:
        if request.model_name not in ("tts", "talker"):
            message = f"Request for unknown model: '{request.model_name}' is not found"
            return iter([error(request, message, scheduled=False)])
        if "op" not in request.parameters:
            stream = Stream(self, context)
            with self._lock:
                self._streams[parameter(request, "stream_id")] = stream
            return self.script(stream, request)
        return (self.control or self._control)(request)

    def _control(self, request: pb.ModelInferRequest) -> Iterator[pb.ModelStreamInferResponse]:
        op = parameter(request, "op")
        if op == "ping":
            yield status(request, ok=True, op=op, active=len(self._streams))
            yield final(request)
            return
        stream = self._streams.get(parameter(request, "stream_id"))
        if stream is None:
            yield error(
                request, f"INVALID_ARGUMENT: stream_id {parameter(request, 'stream_id')} does not run"
            )
            return
        if op == "append":
            stream.appended.append(text_of(request))
        elif op == "end":
            stream.ended.set()
        elif op == "ack":
            stream.acknowledged.append(parameter(request, "position"))
        else:
            stream.cancelled.set()
        yield status(request, ok=True, op=op, active=len(self._streams))
        yield final(request)


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether `condition` comes true in time; for what happens on another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True

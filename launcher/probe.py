"""Asking a running server: control requests to the talker, one spoken word, loading of models. Raw gRPC, with
deadlines.

Triton's own readiness stays 200 while a model's process is dead, so only an answer from the model counts.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from launcher.server import key_metadata

WORD = "Yes."
END_SECONDS = 0.5  # how long a call may stay open behind an error
NOT_HEALTHY = "is not healthy"  # what the server says of a model whose process is gone
NEEDS_REFERENCE = "give reference_wav"  # what a voice says that only clones voices
HUM_HERTZ, HUM_SAMPLES, HUM_RATE = 140, 16_000, 16_000


class ProbeError(Exception):
    """The server did not answer as a working one does; the message tells what it did."""


class UnreachableError(ProbeError):
    """No server answers at that address."""


class ModelDeadError(ProbeError):
    """The server says that a model's process is gone."""


class SilentError(ProbeError):
    """No answer within the time allowed."""


@dataclass(frozen=True)
class Pulse:
    """The talker's answer to a ping. active: streams it speaks; queued: streams that wait for a slot."""

    active: int
    queued: int
    draining: bool
    codec_alive: bool
    details: Mapping[str, Any]


class Server:
    """A connection to a running server, for one thread. Use as a context manager, or call `close`.

    key: opens the administrative part of the API, which `drain`, `load`, `unload` and `model_states` need.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self._key = key
        self._channel = grpc.insecure_channel(
            url,
            options=[
                ("grpc.enable_retries", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 500),
                ("grpc.use_local_subchannel_pool", 1),  # a past connection's back-off is not ours
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def ready(self, timeout: float = 1.0) -> bool:
        """Whether the server says that all its models are loaded."""
        try:
            answer = self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout)
        except grpc.RpcError:
            return False
        return bool(answer.ready)

    def control(self, op: str, timeout: float, **parameters: float | str) -> dict[str, Any]:
        """A control request to the talker; its JSON answer. Raises ProbeError."""
        request = _request("talker", "")
        request.parameters["op"].string_param = op
        for name, value in parameters.items():
            if isinstance(value, str):
                request.parameters[name].string_param = value
            else:
                request.parameters[name].double_param = value
        answer: dict[str, Any] | None = None
        for response in self._stream(request, timeout):
            for position, output in enumerate(response.outputs):
                if output.name == "status":
                    answer = json.loads(response.raw_output_contents[position][4:])
        if answer is None or answer.get("ok") is not True:
            raise ProbeError(f"talker answered op={op} with {answer}")
        return answer

    def ping(self, timeout: float) -> Pulse:
        """Raises ProbeError."""
        answer = self.control("ping", timeout)
        return Pulse(
            active=int(answer.get("active", 0)),
            queued=int(answer.get("queued", 0)),
            draining=bool(answer.get("draining", False)),
            codec_alive=bool(answer.get("codec_alive", True)),
            details=answer,
        )

    def drain(self, limit_seconds: float, timeout: float) -> None:
        """Stop admitting streams; those still open after `limit_seconds` fail. Raises ProbeError."""
        self.control("drain", timeout, limit_seconds=limit_seconds, key=self._key)

    def speak(self, timeout: float, text: str = WORD, model: str = "tts", hum: bool = False) -> float:
        """Have a word spoken through the whole chain; seconds of waiting for the first audio.

        A server that is full works: it counts as 0 seconds. hum: in the voice of a second of humming; a voice
        that clones and has no reference of its own is asked so. Raises ProbeError.
        """
        started = time.monotonic()
        first: float | None = None
        request = _request(model, text)
        if hum:
            _add_hum(request)
        try:
            for response in self._stream(request, timeout):
                if first is None and any(output.name == "waveform" for output in response.outputs):
                    first = time.monotonic() - started
        except ProbeError as error:
            if "FULL:" in str(error):
                return 0.0
            if NEEDS_REFERENCE in str(error) and not hum:
                return self.speak(timeout, text, model, hum=True)
            raise
        if first is None:
            raise ProbeError(f"no audio came for {text!r}")
        return first

    def load(self, model: str, timeout: float, stop: threading.Event) -> None:
        """Load a model, and the ensembles that wait for it. Raises ProbeError, also when `stop` is set
        meanwhile.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        call = self._stub.RepositoryModelLoad.future(
            request, timeout=timeout, metadata=key_metadata(self._key)
        )
        while not call.done():
            if stop.wait(0.05):
                call.cancel()
                raise ProbeError(f"loading {model} was given up")
        try:
            call.result()
        except grpc.RpcError as error:
            raise _explained(f"loading {model}", error, timeout) from error

    def unload(self, model: str, timeout: float) -> None:
        """Raises ProbeError."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        self._call(f"unloading {model}", self._stub.RepositoryModelUnload, request, timeout)

    def model_states(self, timeout: float) -> dict[str, str]:
        """State of each model, e.g. READY, UNAVAILABLE, LOADING. Raises ProbeError."""
        answer = self._call(
            "model index", self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(), timeout
        )
        return {model.name: model.state for model in answer.models}

    def _call(self, what: str, method: Any, request: Any, timeout: float) -> Any:
        try:
            return method(request, timeout=timeout, metadata=key_metadata(self._key))
        except grpc.RpcError as error:
            raise _explained(what, error, timeout) from error

    def _stream(self, request: service_pb2.ModelInferRequest, timeout: float) -> Iterable[Any]:
        """The responses to one streamed request. Raises ProbeError, for an error response after the call's end.

        A call is read to its end: cancelled right behind its last response, it can leave the server with a
        reference to the model, which then is never unloaded (seen on 2.51, in every second stop of the server).
        """
        what = f"a request to {request.model_name}"
        call = self._stub.ModelStreamInfer(iter([request]), timeout=timeout)
        finished = False
        patience = threading.Timer(END_SECONDS, call.cancel)
        failure = ""
        try:
            for message in call:
                if message.error_message and not failure:
                    failure = message.error_message
                    patience.start()
                if failure:
                    continue
                yield message.infer_response
                finished = message.infer_response.parameters["triton_final_response"].bool_param
        except grpc.RpcError as error:
            if not failure:
                raise _explained(what, error, timeout) from error
        finally:
            patience.cancel()
            call.cancel()  # of a call that has ended: nothing
        if failure:
            kind = ModelDeadError if NOT_HEALTHY in failure else ProbeError
            raise kind(f"{what} was answered with: {failure}")
        if not finished:
            raise ProbeError(f"{what} ended without a final response")


def _request(model: str, text: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model, id="tritone-probe")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="target_text", datatype="BYTES", shape=[1, 1])
    data = text.encode()
    request.raw_input_contents.append(len(data).to_bytes(4, "little") + data)
    return request


def _add_hum(request: service_pb2.ModelInferRequest) -> None:
    """A second of a low buzz as reference audio."""
    period = HUM_RATE // HUM_HERTZ
    samples = [0.2 * (2 * (i % period) / period - 1) for i in range(HUM_SAMPLES)]
    request.inputs.add(name="reference_wav", datatype="FP32", shape=[1, HUM_SAMPLES])
    request.raw_input_contents.append(struct.pack(f"<{HUM_SAMPLES}f", *samples))


def _explained(what: str, error: grpc.RpcError, timeout: float) -> ProbeError:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return SilentError(f"{what} got no answer within {timeout:g} s")
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return UnreachableError(f"no server answers ({error.details()})")
    return ProbeError(f"{what} failed: {error.details()}")

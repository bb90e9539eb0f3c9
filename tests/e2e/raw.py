"""Requests as any program may send them: raw gRPC, nothing checked on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc


@dataclass(frozen=True)
class Response:
    """One message of a stream. outputs: tensors by name as raw bytes. final: None if Triton did not say."""

    outputs: Mapping[str, bytes]
    final: bool | None
    error: str


def bytes_element(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def request(
    model: str,
    inputs: Mapping[str, tuple[str, Sequence[int], bytes]],
    parameters: Mapping[str, Any] | None = None,
) -> service_pb2.ModelInferRequest:
    """inputs: name -> (Triton datatype, shape, raw contents)."""
    message = service_pb2.ModelInferRequest(model_name=model, id="raw")
    for name, (datatype, shape, contents) in inputs.items():
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(contents)
    for name, value in (parameters or {}).items():
        parameter = message.parameters[name]
        field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[
            type(value)
        ]
        setattr(parameter, field, value)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def text_request(
    text: str | bytes | None, parameters: Mapping[str, Any] | None = None, model: str = "tts", **more: Any
) -> service_pb2.ModelInferRequest:
    inputs = dict(more)
    if text is not None:
        data = text if isinstance(text, bytes) else text.encode()
        inputs["target_text"] = ("BYTES", [1, 1], bytes_element(data))
    return request(model, inputs, parameters)


def wave_input(samples: np.ndarray) -> tuple[str, list[int], bytes]:
    return ("FP32", [1, len(samples)], samples.astype(np.float32).tobytes())


class Connection:
    """A channel of its own to one server."""

    def __init__(self, url: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(url, options)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def stream(self, message: service_pb2.ModelInferRequest, timeout: float = 20.0) -> Iterator[Response]:
        """The responses to one request up to its end. Raises grpc.RpcError (deadline: the stream hangs)."""
        call = self.stub.ModelStreamInfer(iter([message]), timeout=timeout)
        try:
            for answer in call:
                response = answer.infer_response
                final = None
                if "triton_final_response" in response.parameters:
                    final = response.parameters["triton_final_response"].bool_param
                outputs = dict(
                    zip((o.name for o in response.outputs), response.raw_output_contents, strict=True)
                )
                yield Response(outputs, final, answer.error_message)
                if final or answer.error_message:
                    return
        finally:
            call.cancel()

    def error(self, message: service_pb2.ModelInferRequest, timeout: float = 20.0) -> str:
        """The error that the request ends with; fails if it ends otherwise."""
        responses = list(self.stream(message, timeout))
        assert responses[-1].error, f"no error came, but {len(responses)} responses"
        return responses[-1].error

    def samples(self, message: service_pb2.ModelInferRequest, timeout: float = 60.0) -> int:
        """Number of samples that the request brings; fails on an error."""
        count = 0
        for response in self.stream(message, timeout):
            assert not response.error, response.error
            count += len(response.outputs.get("waveform", b"")) // 4
        return count

"""Tensors and parameters in Triton's protobuf messages (KServe v2 binary layout)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as pb

from client.errors import InvalidArgument, ProtocolError

ParameterValue = str | int | bool | float

_INT64 = np.iinfo(np.int64)


def encode_text(field: str, text: str) -> bytes:
    """UTF-8 bytes of `text`; a lone surrogate has no UTF-8 form and is refused here."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{field} is {type(text).__name__}, must be str")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{field} holds {text[error.start]!r} at position {error.start}, which UTF-8 cannot encode"
        ) from error


def add_bytes(request: pb.ModelInferRequest, name: str, shape: Sequence[int], value: bytes) -> None:
    """Append a BYTES tensor of one element: a 4-byte little-endian length, then the bytes."""
    request.inputs.add(name=name, datatype="BYTES", shape=shape)
    request.raw_input_contents.append(len(value).to_bytes(4, "little") + value)


def add_array(
    request: pb.ModelInferRequest, name: str, datatype: str, array: npt.NDArray[np.generic]
) -> None:
    """Append a numeric tensor with the shape of `array`, little-endian."""
    request.inputs.add(name=name, datatype=datatype, shape=array.shape)
    request.raw_input_contents.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def set_parameter(request: pb.ModelInferRequest, name: str, value: ParameterValue) -> None:
    """Set a request parameter. Triton knows string, int64, bool and double only."""
    parameter = request.parameters[name]
    if isinstance(value, (bool, np.bool_)):
        parameter.bool_param = bool(value)
    elif isinstance(value, (int, np.integer)):
        if not _INT64.min <= value <= _INT64.max:
            raise InvalidArgument(f"{name} is {value}, must fit a signed 64-bit integer")
        parameter.int64_param = int(value)
    elif isinstance(value, (float, np.floating)):
        parameter.double_param = float(value)
    elif isinstance(value, str):
        parameter.string_param = encode_text(name, value).decode("utf-8")
    else:
        raise InvalidArgument(f"{name} is {type(value).__name__}, must be str, int, bool or float")


def is_final(response: pb.ModelInferResponse) -> bool:
    """True on the last response of a request, whether it carries data or not."""
    return "triton_final_response" in response.parameters and bool(
        response.parameters["triton_final_response"].bool_param
    )


def raw_outputs(response: pb.ModelInferResponse) -> dict[str, tuple[str, bytes]]:
    """Outputs by name: (datatype, bytes)."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise ProtocolError(
            f"{len(response.outputs)} outputs but {len(response.raw_output_contents)} raw contents received"
        )
    return {
        output.name: (output.datatype, content)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def float_samples(outputs: dict[str, tuple[str, bytes]], name: str) -> npt.NDArray[np.float32]:
    """An FP32 output, flat. The array is read-only: it is a view of the message."""
    datatype, content = _output(outputs, name)
    if datatype != "FP32" or len(content) % 4:
        raise ProtocolError(f"output {name} is {datatype} of {len(content)} bytes, must be FP32")
    return np.frombuffer(content, dtype="<f4")


def single_bytes(outputs: dict[str, tuple[str, bytes]], name: str) -> bytes:
    """A BYTES output of exactly one element."""
    datatype, content = _output(outputs, name)
    length = int.from_bytes(content[:4], "little")
    if datatype != "BYTES" or len(content) < 4 or len(content) != 4 + length:
        raise ProtocolError(f"output {name} is {datatype} of {len(content)} bytes, must be one BYTES element")
    return content[4:]


def _output(outputs: dict[str, tuple[str, bytes]], name: str) -> tuple[str, bytes]:
    if name not in outputs:
        raise ProtocolError(f"output {name} is missing; the response has {sorted(outputs) or 'no outputs'}")
    return outputs[name]

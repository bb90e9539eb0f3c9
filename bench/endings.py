"""Sends one request of any kind and tells how it ended: with audio, with a clear error, or wrongly."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from client.errors import ProtocolError, TTSError, carries_code, error_from_message, error_from_rpc
from client.protocol import StreamDecoder
from client.trace import TraceRecorder
from client.wire import is_final

HANG_SECONDS = 120.0  # far above limits.idle_seconds of the voices, after which open text ends


@dataclass(frozen=True)
class Ending:
    """kind: "audio", "status", "done" (a final without data), or an error's code; Triton's own errors have
    "triton " before it. fault: what is wrong with that, None if nothing is. text: of the error."""

    kind: str
    text: str = ""
    fault: str | None = None


async def send(stub: Any, request: pb.ModelInferRequest) -> Ending:
    """Over a gRPC stream of its own, to its end."""
    decoder = StreamDecoder("", TraceRecorder(""))
    kind, final = "done", False
    call = stub.ModelStreamInfer(iter([request]), timeout=HANG_SECONDS)
    try:
        async for response in call:
            if response.error_message:
                return of_error(response.error_message)
            infer = response.infer_response
            infer.id = ""
            names = [output.name for output in infer.outputs]
            if "waveform" in names and "chunk_info" in names:
                kind = "audio"
                decoder.decode(response)
            elif names:
                kind = "status" if "status" in names else "tensors"
            final = final or is_final(infer)
        if not final:
            return Ending(kind, fault="the call ended without a final response")
    except ProtocolError as error:
        return Ending(error.code, error.message, fault=error.message)
    except grpc.RpcError as error:
        return of_rpc_error(error)
    finally:
        call.cancel()
    # An answer without a word is only right where nothing was asked for.
    return Ending(kind, fault="neither audio nor an error" if kind == "done" else None)


async def infer(stub: Any, request: pb.ModelInferRequest) -> Ending:
    """By the call without a stream, which decoupled models do not know."""
    try:
        await stub.ModelInfer(request, timeout=HANG_SECONDS)
    except grpc.RpcError as error:
        return of_rpc_error(error)
    return Ending("tensors")


def of_error(text: str) -> Ending:
    """A streamed error. INTERNAL is a fault: it says that we, not the client, were surprised."""
    error: TTSError = error_from_message(text)
    if carries_code(text):
        return Ending(error.code, text, fault=text if error.code == "INTERNAL" else None)
    surprised = "Traceback" in text or "Failed to process the request" in text or "not healthy" in text
    return Ending(f"triton {error.code}", text, fault=text if surprised else None)


def of_rpc_error(problem: grpc.RpcError) -> Ending:
    status = problem.code()
    error = error_from_rpc(problem, "the server")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Ending("hang", error.detail, fault=f"no end within {HANG_SECONDS:g} s")
    lost = status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN) and not _refused(error.detail)
    return Ending(f"grpc {status.name}", error.detail, fault=error.detail or status.name if lost else None)


def _refused(text: str) -> bool:
    """UNAVAILABLE is also what Triton says of a model that does not exist."""
    return "model" in text or "restricted" in text


async def post(host: str, port: int, path: str, body: bytes) -> Ending:
    """HTTP, any body. Raises nothing: a connection that is cut without an answer is a fault."""
    try:
        return await asyncio.wait_for(_post(host, port, path, body), HANG_SECONDS)
    except asyncio.TimeoutError:
        return Ending("hang", path, fault=f"no end within {HANG_SECONDS:g} s")
    except OSError as error:
        return Ending("http broken off", str(error), fault=f"HTTP {path}: {error}")


async def _post(host: str, port: int, path: str, body: bytes) -> Ending:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 "):
        return Ending("http none", path, fault=f"HTTP {path}: {len(answer)} bytes that are no answer")
    status = answer[9:12].decode(errors="replace")
    text = answer.partition(b"\r\n\r\n")[2].decode(errors="replace")[:2_000]
    silent = status == "200" and not text
    wrong = "INTERNAL:" in text or "Failed to process" in text or silent
    return Ending(f"http {status}", text, fault=f"HTTP {path}: {text or 'empty answer'}" if wrong else None)


async def splash(host: str, port: int, data: bytes) -> Ending:
    """Bytes that are no request at all, to any port."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(data)
        writer.write_eof()
        try:
            await asyncio.wait_for(reader.read(), 2.0)
        finally:
            writer.close()
    except (OSError, asyncio.TimeoutError):
        pass  # to be cut off, or left alone, is the right answer
    return Ending("garbage")


def json_body(fields: Any) -> bytes:
    return json.dumps(fields).encode("utf-8", errors="surrogatepass")

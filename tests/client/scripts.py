"""Scripts for the server: how a stream may go."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.client.scripted_server import Stream, audio, error, final, speech

Responses = Iterator[pb.ModelStreamInferResponse]
CHUNK = np.full(480, 0.5, np.float32)


def silent(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    """Nothing ever, until cancelled."""
    if stream.silence():
        yield final(request)


def one_chunk_then_silent(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    yield audio(request, 0, 0, CHUNK)
    if stream.silence():
        yield audio(request, 1, len(CHUNK), CHUNK[:0], finish_reason="cancelled", final=True)


def deaf(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    """One chunk, then neither audio nor an end: the cancel request is ignored."""
    yield audio(request, 0, 0, CHUNK)
    while stream.context.is_active():
        stream.silence(0.05)


def endless(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    """Chunks as fast as they are taken, until cancelled."""
    index = 0
    while not stream.cancelled.is_set() and stream.context.is_active():
        yield audio(request, index, index * len(CHUNK), CHUNK)
        index += 1
        stream.cancelled.wait(0.001)
    yield final(request)


def fails_after_two(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    yield audio(request, 0, 0, CHUNK)
    yield audio(request, 1, len(CHUNK), CHUNK)
    yield error(request, "in ensemble 'tts', INTERNAL: the codec failed for this stream")


def refused(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    yield error(request, "in ensemble 'tts', FULL: the server is full: 64 streams and 64 waiting")


def hole(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    yield audio(request, 0, 0, CHUNK)
    yield audio(request, 1, 2 * len(CHUNK), CHUNK)
    if stream.silence():
        yield final(request)


def speaks_its_text(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    """One chunk a word, of the first text and of all that is appended; the end comes with `end`."""
    index, position = 0, 0
    texts = [text for text in [first_text(request)] if text]
    while True:
        heard = [word for text in [*texts, *stream.appended] for word in text.split()]
        while index < len(heard):
            yield audio(request, index, index * len(CHUNK), CHUNK, word=heard[index])
            index += 1
        position = len(stream.appended)
        if stream.cancelled.is_set() or (stream.ended.is_set() and position == len(stream.appended)):
            break
        stream.ended.wait(0.005)
    yield audio(request, index, index * len(CHUNK), CHUNK[:0], finish_reason="stop")
    yield final(request)


def speech_slowly(stream: Stream, request: pb.ModelInferRequest) -> Responses:
    for response in speech(request, 3):
        time.sleep(0.05)
        yield response


def first_text(request: pb.ModelInferRequest) -> str:
    return request.raw_input_contents[0][4:].decode()


__all__ = [
    "CHUNK",
    "deaf",
    "endless",
    "fails_after_two",
    "hole",
    "one_chunk_then_silent",
    "refused",
    "silent",
    "speaks_its_text",
    "speech",
    "speech_slowly",
]

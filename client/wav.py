"""WAV files: written while audio arrives (16-bit PCM), read as reference audio (mono float32)."""

from __future__ import annotations

import contextlib
import os
import struct
import wave
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from client.errors import InvalidArgument

_UNKNOWN_SIZE = 0xFFFFFFFF
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


def to_pcm16(samples: npt.NDArray[np.float32]) -> bytes:
    """Little-endian 16-bit PCM of samples in [-1, 1]; what lies outside is clipped, never wrapped.

    Raises ValueError for NaN, which has no sound.
    """
    if np.isnan(samples).any():
        raise ValueError("samples hold NaN")
    return np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()


class WavWriter:
    """A 16-bit WAV file that grows chunk by chunk.

    Into a seekable file the header is kept right after every write, so even an interrupted file plays. Into a
    pipe the header says that the length is unknown (0xFFFFFFFF), which players take as "until the end".
    """

    def __init__(
        self, target: str | os.PathLike[str] | BinaryIO, sample_rate: int, channels: int = 1
    ) -> None:
        self._open = contextlib.ExitStack()
        if isinstance(target, (str, os.PathLike)):
            target = self._open.enter_context(Path(target).open("wb"))  # noqa: SIM115 - closed in close()
        self._file: BinaryIO = target
        self._wave: wave.Wave_write | None = None
        self._channels = channels
        if self._file.seekable():
            writer = self._open.enter_context(wave.open(self._file, "wb"))  # noqa: SIM115
            writer.setnchannels(channels)
            writer.setsampwidth(2)
            writer.setframerate(sample_rate)
            writer.writeframes(b"")
            self._wave = writer
        else:
            self._file.write(_stream_header(sample_rate, channels))

    def write(self, samples: npt.NDArray[np.float32]) -> None:
        """Append float samples, [n] for mono or [n, channels]."""
        channels = samples.shape[1] if samples.ndim == 2 else 1
        if channels != self._channels:
            raise ValueError(f"samples have {channels} channels, the file has {self._channels}")
        pcm = to_pcm16(samples)
        if self._wave is not None:
            self._wave.writeframes(pcm)
        else:
            self._file.write(pcm)
            self._file.flush()

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stream_header(sample_rate: int, channels: int) -> bytes:
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", _UNKNOWN_SIZE, b"WAVE"),
        *(b"fmt ", 16, _PCM, channels, sample_rate, sample_rate * channels * 2, channels * 2, 16),
        *(b"data", _UNKNOWN_SIZE),
    )


def read_wav(path: str | os.PathLike[str]) -> tuple[npt.NDArray[np.float32], int]:
    """A WAV file as (mono float32 samples in [-1, 1], sample rate); channels are averaged.

    Reads integer PCM of 8, 16, 24 and 32 bits and floats of 32 and 64 bits, plain or "extensible" (the
    standard library refuses extensible before Python 3.12 and floats always). Raises InvalidArgument for
    anything else, and OSError when the file cannot be read.
    """
    content = Path(path).read_bytes()
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise InvalidArgument(
            f"{path} is no WAV file; convert it, e.g. ffmpeg -i INPUT {Path(path).stem}.wav"
        )
    layout, data = _find_chunks(content, path)
    kind, channels, sample_rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", layout)
    if kind == _EXTENSIBLE and len(layout) >= 26:
        kind = struct.unpack_from("<H", layout, 24)[0]
    if not channels or not sample_rate or frame_bytes != channels * ((bits + 7) // 8):
        raise InvalidArgument(
            f"{path} has a broken format: {channels} channels, {sample_rate} Hz, {bits} bits"
        )
    samples = _decode(data[: len(data) - len(data) % frame_bytes], kind, bits)
    if samples is None:
        raise InvalidArgument(f"{path} holds WAV format {kind} with {bits} bits; use PCM or float")
    return samples.reshape(-1, channels).mean(axis=1, dtype=np.float64).astype(np.float32), sample_rate


def _find_chunks(content: bytes, path: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    layout, position = b"", 12
    while position + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, position)
        body = content[position + 8 : position + 8 + size]
        if name == b"fmt ":
            layout = body
        elif name == b"data" and len(layout) >= 16:
            return layout, body
        position += 8 + size + size % 2
    raise InvalidArgument(f"{path} is a WAV file without {'samples' if len(layout) >= 16 else 'a format'}")


def _decode(data: bytes, kind: int, bits: int) -> npt.NDArray[np.float64] | None:
    if kind == _FLOAT and bits in (32, 64):
        return np.frombuffer(data, f"<f{bits // 8}").astype(np.float64)
    if kind == _PCM and bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128.0) / 128.0
    if kind == _PCM and bits in (16, 32):
        return np.frombuffer(data, f"<i{bits // 8}") / float(1 << (bits - 1))
    if kind == _PCM and bits == 24:
        widened = np.zeros((len(data) // 3, 4), np.uint8)
        widened[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return widened.view("<i4")[:, 0] / float(1 << 31)
    return None

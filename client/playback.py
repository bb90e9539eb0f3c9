"""Playing audio while it arrives, through the optional package sounddevice."""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt


class NoPlayback(Exception):  # noqa: N818
    """There is nothing to play on; the message says why and what to do."""


def sound_module() -> Any:
    """The module sounddevice. Raises NoPlayback if it is missing, unusable, or knows no output device."""
    try:
        module = importlib.import_module("sounddevice")
    except ImportError:
        raise NoPlayback("playing needs the package sounddevice: pip install sounddevice") from None
    except OSError as error:  # the package is there, the PortAudio library is not
        raise NoPlayback(f"sounddevice cannot be used: {error} (Debian: apt install libportaudio2)") from None
    try:
        module.query_devices(kind="output")
    except (module.PortAudioError, ValueError):
        raise NoPlayback("this machine has no sound output device") from None
    return module


class Player:
    """An open output device: `write` returns once samples are queued, `close` waits until they are heard."""

    def __init__(self, module: Any, sample_rate: int, channels: int = 1) -> None:
        self._channels = channels
        self._stream = module.OutputStream(samplerate=sample_rate, channels=channels, dtype="float32")
        self._stream.start()

    def write(self, samples: npt.NDArray[np.float32]) -> None:
        """Queue float samples, [n] for mono or [n, channels]."""
        self._stream.write(np.ascontiguousarray(samples.reshape(-1, self._channels)))

    def close(self) -> None:
        self._stream.stop()
        self._stream.close()

    def abort(self) -> None:
        """Stop at once and drop what is queued."""
        self._stream.abort()
        self._stream.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

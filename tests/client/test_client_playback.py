"""Playing: what is handed to the sound device, and what is said when there is none."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from client.playback import NoPlayback, Player, sound_module


class Device:
    """Stands in for sounddevice.OutputStream: no test machine is sure to have a sound device."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.calls, self.heard = settings, [], []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")

    def write(self, samples: np.ndarray) -> None:
        assert samples.flags.c_contiguous
        assert samples.dtype == np.float32
        self.heard.append(samples.copy())


class Sounddevice(ModuleType):
    OutputStream = Device

    class PortAudioError(Exception):
        pass

    def __init__(self, device: bool = True) -> None:
        super().__init__("sounddevice")
        self._device = device

    def query_devices(self, kind: str) -> dict[str, str]:
        if not self._device:
            raise self.PortAudioError("Error querying device -1")
        return {"name": kind}


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(NoPlayback, match="pip install sounddevice"):
        sound_module()


def test_missing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", Sounddevice(device=False))
    with pytest.raises(NoPlayback, match="no sound output device"):
        sound_module()


def test_missing_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    with pytest.raises(NoPlayback, match=r"PortAudio library not found.*libportaudio2"):
        sound_module()


@pytest.mark.parametrize("channels", [1, 2])
def test_samples_reach_the_device_in_order(monkeypatch: pytest.MonkeyPatch, channels: int) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", Sounddevice())
    audio = np.arange(12, dtype=np.float32).reshape(-1, channels)
    with Player(sound_module(), 24_000, channels) as player:
        for part in np.array_split(audio[:, 0] if channels == 1 else audio, 3):
            player.write(part)
        device: Any = player._stream
    assert device.settings == {"samplerate": 24_000, "channels": channels, "dtype": "float32"}
    assert np.array_equal(np.concatenate(device.heard), audio)
    assert device.calls == ["start", "stop", "close"]  # stop() plays to the end


def test_an_error_stops_the_sound_at_once() -> None:
    with pytest.raises(ZeroDivisionError), Player(Sounddevice(), 24_000) as player:
        device: Any = player._stream
        _ = 1 / 0
    assert device.calls == ["start", "abort", "close"]

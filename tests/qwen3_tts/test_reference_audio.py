"""Reference audio: resampling, and limits of the encoders."""

from __future__ import annotations

import wave

import numpy as np
import pytest
import torch

from backends.families.qwen3_tts.reference_audio import log_mel, mel_filters, resample
from backends.families.qwen3_tts.reference_voice import Reference, read_wav
from backends.voice import VoiceError
from tests.qwen3_tts.model import talker


def tones(rate: int, seconds: float = 0.5) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (np.sin(2 * np.pi * 1000 * time) + 0.3 * np.sin(2 * np.pi * 3300 * time)).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 16_000, 16_001, 22_050, 44_100, 48_000, 192_000])
def test_resampling_keeps_the_band_and_the_length(rate):
    audio = resample(tones(rate), rate, 24_000)
    assert audio.dtype == np.float32
    expected = tones(24_000)
    assert abs(len(audio) - len(expected)) <= 1
    inner = slice(600, -600)  # the ends ring, as the tones start and stop there
    np.testing.assert_allclose(audio[: len(expected)][inner], expected[: len(audio)][inner], atol=1e-5)


def test_resampling_removes_what_does_not_fit():
    time = np.arange(24_000) / 48_000
    high = np.sin(2 * np.pi * 15_000 * time).astype(np.float32)
    assert np.abs(resample(high, 48_000, 24_000)[600:-600]).max() < 1e-4


def test_the_right_rate_passes_untouched():
    audio = tones(24_000)
    assert resample(audio, 24_000, 24_000) is audio


def test_mel_filters_are_triangles_of_equal_area():
    filters = mel_filters(24_000, 128)
    assert filters.shape == (128, 513)
    assert (filters >= 0).all()
    area = filters[64:].sum(1) * 24_000 / 1024  # wide enough to be sampled well
    torch.testing.assert_close(area, torch.ones(64), atol=0.06, rtol=0)


def test_a_mel_frame_every_256_samples():
    assert log_mel(torch.from_numpy(tones(24_000)), 24_000, 128).shape == (128, 12_000 // 256)


def test_the_shortest_reference_still_has_a_voice(checkpoint):
    reader = talker(checkpoint("1.7b base"))._prompts._references
    shortest = reader._speaker.shortest
    voice = reader.read(Reference(tones(24_000)[:shortest], 24_000, "So."))
    assert voice.x_vector.shape == (64,)
    assert torch.isfinite(voice.x_vector).all()
    assert voice.codes.shape == (-(-shortest // 1920), 16)
    with pytest.raises(ValueError, match="reference_wav lasts"):
        reader.read(Reference(tones(24_000)[: shortest - 1], 24_000, "So."))


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_the_number_of_reference_frames_is_known_beforehand(checkpoint, rate):
    reader = talker(checkpoint("1.7b base"))._prompts._references
    for samples in (rate // 3, rate // 2, rate // 2 + 1):
        reference = Reference(tones(rate, 1.0)[:samples], rate, "So.")
        assert len(reader.read(reference).codes) == reader.frames(reference)


def test_wav_files(tmp_path):
    path = tmp_path / "stereo.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, 22_050, 2, "NONE", ""))
        file.writeframes(np.array([[16384, 0], [-32768, 32767]], "<i2").tobytes())
    audio, rate = read_wav(path)
    assert rate == 22_050
    np.testing.assert_allclose(audio, [0.25, 0.0], atol=1e-4)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 3, 22_050, 1, "NONE", ""))
        file.writeframes(b"abc")
    with pytest.raises(VoiceError, match="has 24-bit samples; convert it to 16-bit PCM"):
        read_wav(path)

"""Reference audio made ready for the encoders: resampling, and the mel spectrogram of the speaker encoder."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np
import torch
import torch.nn.functional as F

_ZERO_CROSSINGS = 48
_KAISER_BETA = 12.0  # about 118 dB of stop band
_ROLLOFF = 0.96
_BLOCK = 1 << 12  # rows of weights or outputs at once, to bound memory

N_FFT = 1024
HOP = 256
MEL_MAX_HZ = 12_000.0


def resample(audio: np.ndarray, rate: int, target: int) -> np.ndarray:
    """float32 [samples] at `rate` Hz to [ceil(samples * target / rate)] at `target` Hz.

    Band-limited interpolation with a Kaiser-windowed sinc (Smith, "Digital Audio Resampling"); the reference
    package uses soxr through librosa, so results agree closely, not bit for bit.
    """
    if rate == target:
        return audio.astype(np.float32, copy=False)
    factor = gcd(rate, target)
    up, down = target // factor, rate // factor
    cutoff = _ROLLOFF * min(1.0, target / rate)
    half = ceil(_ZERO_CROSSINGS / cutoff)
    # Output n sits at input position n * down / up; only its fraction, one of `up`, decides the weights.
    taps = np.arange(1 - half, half + 1)
    weights = np.empty((up, len(taps)), np.float32)
    for begin in range(0, up, _BLOCK):
        distance = np.arange(begin, min(begin + _BLOCK, up))[:, None] / up - taps
        window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1 - (distance / half) ** 2, 0, 1)))
        weights[begin : begin + _BLOCK] = cutoff * np.sinc(cutoff * distance) * (window / np.i0(_KAISER_BETA))
    padded = np.pad(audio.astype(np.float32, copy=False), (half, half + 1))
    count = -(-len(audio) * up // down)
    out = np.empty(count, np.float32)
    for begin in range(0, count, _BLOCK):
        whole, fraction = np.divmod(np.arange(begin, min(begin + _BLOCK, count)) * down, up)
        segments = padded[whole[:, None] + (taps + half)]
        out[begin : begin + _BLOCK] = np.einsum("nt,nt->n", segments, weights[fraction])
    return out


def _mel_to_hz(mels: np.ndarray) -> np.ndarray:
    return np.where(mels < 15.0, mels * 200 / 3, 1000.0 * np.exp(np.log(6.4) / 27 * (mels - 15.0)))


def _hz_to_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000.0 else 15.0 + 27 / np.log(6.4) * np.log(hz / 1000.0)


@lru_cache(maxsize=4)
def mel_filters(sample_rate: int, mels: int) -> torch.Tensor:
    """float32 [mels, N_FFT // 2 + 1]: Slaney's triangles of equal area, as in `librosa.filters.mel`."""
    bins = np.linspace(0, sample_rate / 2, N_FFT // 2 + 1)
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(MEL_MAX_HZ), mels + 2))
    ramps = edges[:, None] - bins
    widths = np.diff(edges)
    lower = -ramps[:-2] / widths[:-1, None]
    upper = ramps[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(lower, upper))
    return torch.from_numpy((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32))


def log_mel(audio: torch.Tensor, sample_rate: int, mels: int) -> torch.Tensor:
    """float32 [samples] to the log mel spectrogram [mels, samples // HOP], as qwen-tts computes it."""
    padding = (N_FFT - HOP) // 2
    padded = F.pad(audio[None, None], (padding, padding), mode="reflect")[:, 0]
    window = torch.hann_window(N_FFT, device=audio.device)
    spectrum = torch.stft(padded, N_FFT, HOP, N_FFT, window, center=False, return_complex=True)
    magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)[0]
    return torch.log(torch.clamp(mel_filters(sample_rate, mels).to(audio.device) @ magnitude, min=1e-5))

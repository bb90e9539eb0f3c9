"""Source-filter synthesis: the excitation, window by window, through spectral envelopes, overlap-added.

Every tick filters 320 samples of excitation (Hann window, hop 160) with an FFT of 1024: pulses through
a minimum-phase filter made from 64 log gains (folded cepstrum), noise through a zero-phase filter made
from 32.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from backends.families.wren.geometry import SAMPLE_RATE, SAMPLES_PER_TICK

FFT_SIZE = 1024
BINS = FFT_SIZE // 2 + 1
HARMONIC_BANDS = 64
NOISE_BANDS = 32
LOG_GAIN_RANGE = (-12.0, 6.0)
TAIL_TICKS = -(-FFT_SIZE // SAMPLES_PER_TICK) - 1  # ticks after its own that a filtered window reaches into


def mel(hertz: float) -> float:
    """The mel scale of O'Shaughnessy (2595 log10(1 + f / 700))."""
    return 2595 * math.log10(1 + hertz / 700)


def band_interpolation(bands: int) -> torch.Tensor:
    """float32 [bands, BINS]: linear interpolation on the mel scale from band centres to FFT bins."""
    nyquist = SAMPLE_RATE / 2
    places = torch.tensor([mel(nyquist * i / (BINS - 1)) for i in range(BINS)]) / mel(nyquist) * (bands - 1)
    lower = places.floor().clamp(max=bands - 2).long()
    fraction = places - lower
    matrix = torch.zeros(bands, BINS)
    matrix[lower, torch.arange(BINS)] = 1 - fraction
    matrix[lower + 1, torch.arange(BINS)] += fraction
    return matrix


class SourceFilter(nn.Module):
    """Windows of excitation and band gains in, audio out. Holds constants only; differentiable in the
    gains."""

    harmonic_bands: torch.Tensor
    noise_bands: torch.Tensor
    window: torch.Tensor
    odd: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        odd = torch.zeros(FFT_SIZE)
        odd[1 : FFT_SIZE // 2] = 1
        odd[FFT_SIZE // 2 + 1 :] = -1
        self.register_buffer(
            "harmonic_bands", band_interpolation(HARMONIC_BANDS).t().contiguous(), persistent=False
        )
        self.register_buffer(
            "noise_bands", band_interpolation(NOISE_BANDS).t().contiguous(), persistent=False
        )
        self.register_buffer("window", torch.hann_window(2 * SAMPLES_PER_TICK), persistent=False)
        self.register_buffer("odd", odd, persistent=False)

    def minimum_phase(self, log_gain: torch.Tensor) -> torch.Tensor:
        """Complex response [..., BINS] of log magnitudes [..., BINS].

        The log spectrum of a minimum-phase filter has a causal cepstrum. Its real part is `log_gain`; its
        imaginary part is that of the odd half of the cepstrum.
        """
        cepstrum = torch.fft.irfft(torch.complex(log_gain, torch.zeros_like(log_gain)), n=FFT_SIZE)
        phase = torch.fft.rfft(cepstrum * self.odd, n=FFT_SIZE).imag.contiguous()
        gain = torch.exp(log_gain)
        return torch.complex(gain * torch.cos(phase), gain * torch.sin(phase))

    def filter(
        self, excitation: torch.Tensor, harmonic_gain: torch.Tensor, noise_gain: torch.Tensor
    ) -> torch.Tensor:
        """Filter each tick's window.

        excitation: float32 [2, B, (N + 1) * SAMPLES_PER_TICK], pulses and noise, starting one tick
        early. harmonic_gain: [B, N, HARMONIC_BANDS], noise_gain: [B, N, NOISE_BANDS], natural log.
        Returns [B, N, FFT_SIZE].
        """
        windows = excitation.unfold(2, 2 * SAMPLES_PER_TICK, SAMPLES_PER_TICK) * self.window
        pulses, noise = torch.fft.rfft(windows, n=FFT_SIZE).unbind(0)
        linear = nn.functional.linear
        harmonic = self.minimum_phase(linear(harmonic_gain, self.harmonic_bands).clamp(*LOG_GAIN_RANGE))
        breath = torch.exp(linear(noise_gain, self.noise_bands).clamp(*LOG_GAIN_RANGE))
        return torch.fft.irfft(pulses * harmonic + noise * breath, n=FFT_SIZE)


def overlap_add(filtered: torch.Tensor, tail: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the windows of N ticks.

    filtered: [B, N, FFT_SIZE]. tail: [B, TAIL_TICKS, SAMPLES_PER_TICK], what earlier ticks left for
    these and later ones. Returns audio [B, N * SAMPLES_PER_TICK] and the new tail. A sample's parts are
    added oldest first, in one call or in many, so the result is the same to the bit.
    """
    batch, ticks, _ = filtered.shape
    total = torch.cat([tail, tail.new_zeros(batch, ticks, SAMPLES_PER_TICK)], 1)
    for reach in range(TAIL_TICKS, -1, -1):
        part = filtered[..., reach * SAMPLES_PER_TICK : (reach + 1) * SAMPLES_PER_TICK]
        total[:, reach : reach + ticks, : part.shape[2]] += part
    return total[:, :ticks].reshape(batch, ticks * SAMPLES_PER_TICK), total[:, ticks:]

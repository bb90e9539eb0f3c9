"""The decoder's sound source: a band-limited pulse train at the pitch, and noise.

The pulse train is the closed form of a sum of equal cosines (Dirichlet kernel), so it has no harmonics
above `HARMONICS_LIMIT`. Its phase is kept as an integer in units of 2^-48 cycles: integer sums are
associative, so the phase is the same to the bit however a stream is cut into calls, and never loses
precision in a long one.
"""

from __future__ import annotations

import math

import torch

from backends.families.wren.geometry import SAMPLE_RATE, SAMPLES_PER_TICK

HARMONICS_LIMIT = 7600.0  # Hz
PHASE_BITS = 48
PHASE_MASK = (1 << PHASE_BITS) - 1
NOISE_LENGTH = 65_537  # prime: the noise repeats only after 655 s of ticks
LOG_F0_RANGE = (math.log(50.0), math.log(500.0))


def noise_table() -> torch.Tensor:
    """float32 [NOISE_LENGTH] of standard normal values; part of the codec's definition, so its seed is
    fixed."""
    return torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(7))


def noise_at(table: torch.Tensor, position: torch.Tensor, samples: int) -> torch.Tensor:
    """Noise [B, samples] that belongs to the samples from `position` int64 [B] on."""
    offsets = torch.arange(samples, device=position.device)
    return table[(position[:, None] + offsets) % NOISE_LENGTH]


def quantise_log_f0(log_f0: torch.Tensor) -> torch.Tensor:
    """Round to 1/1024 within 50 to 500 Hz, so that rounding errors of the network do not drift the
    phase."""
    return (torch.round(log_f0 * 1024) / 1024).clamp(*LOG_F0_RANGE)


def pulse_train(
    log_f0: torch.Tensor, previous: torch.Tensor, phase: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pulses whose pitch glides from tick to tick.

    log_f0: float32 [B, N], natural log of Hz at the end of each tick. previous: float32 [B], that of
    the tick before, 0 if there was none. phase: int64 [B]. Returns the pulses, float32 [B, N *
    SAMPLES_PER_TICK], and the new phase.
    """
    batch, ticks = log_f0.shape
    start = torch.where(previous > 0, previous, log_f0[:, 0])
    before = torch.cat([start[:, None], log_f0[:, :-1]], 1).double()[..., None]
    ramp = torch.arange(1, SAMPLES_PER_TICK + 1, dtype=torch.float64, device=log_f0.device) / SAMPLES_PER_TICK
    f0 = torch.exp(torch.lerp(before, log_f0.double()[..., None], ramp))  # [B, N, SAMPLES_PER_TICK] Hz
    cycles = torch.cumsum(f0 / SAMPLE_RATE, 2)  # since the tick began
    per_tick = torch.round(cycles[..., -1] * (1 << PHASE_BITS)).long()
    phases = torch.cumsum(torch.cat([phase[:, None], per_tick], 1), 1) & PHASE_MASK
    cycles = cycles + (phases[:, :-1, None].double() / (1 << PHASE_BITS))
    cycles = cycles - torch.round(cycles)
    harmonics = torch.floor(HARMONICS_LIMIT / f0)
    turns = (harmonics + 0.5) * cycles
    turns = turns - torch.round(turns)  # reduced in float64, so float32 is enough for the sines
    numerator = torch.sin(turns.float() * (2 * math.pi))
    denominator = torch.sin(cycles.float() * math.pi)
    at_peak = denominator.abs() < 1e-5
    count = harmonics.float()
    ratio = torch.where(at_peak, 2 * count + 1, numerator / denominator.masked_fill(at_peak, 1.0))
    pulses = (0.5 * (ratio - 1)) * torch.sqrt(2 / count)
    return pulses.view(batch, ticks * SAMPLES_PER_TICK), phases[:, -1]

"""The whole codec as it is trained: encoder, quantiser, decoder and synthesis."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn

from backends.families.wren.blocks import ConvNeXtBlock
from backends.families.wren.decoder import Decoder, Voicing
from backends.families.wren.excitation import noise_at, noise_table, pulse_train
from backends.families.wren.geometry import (
    CODEBOOK_SIZE,
    CODEBOOKS,
    LATENT_SIZE,
    SAMPLE_RATE,
    SAMPLES_PER_TICK,
    TICKS_PER_FRAME,
)
from backends.families.wren.quantiser import Codebooks
from backends.families.wren.synthesis import TAIL_TICKS, SourceFilter, overlap_add

MELS = 80
LOW_BINS = 48  # of an FFT of 2048: resolves the harmonics, for the pitch
TICK_WIDTH = 160
FRAME_WIDTH = 256


def mel_filters(bands: int, fft_size: int) -> torch.Tensor:
    """float32 [bands, fft_size / 2 + 1]: triangles on the mel scale up to the Nyquist frequency, of sum
    1."""
    nyquist = SAMPLE_RATE / 2
    top = 2595 * torch.log10(torch.tensor(1 + nyquist / 700))
    edges = 700 * (10 ** (torch.linspace(0, 1, bands + 2) * top / 2595) - 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequencies = torch.linspace(0, nyquist, fft_size // 2 + 1)
    rising, falling = (frequencies - low) / (centre - low), (high - frequencies) / (high - centre)
    filters = torch.minimum(rising, falling).clamp(min=0)
    return filters / filters.sum(1, keepdim=True).clamp(min=1e-6)


class Features(nn.Module):
    """Audio [B, N] to log spectra [B, N / SAMPLES_PER_TICK, MELS + LOW_BINS]; tick k is centred on
    sample 160 k."""

    filters: torch.Tensor
    short_window: torch.Tensor
    long_window: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", mel_filters(MELS, 512), persistent=False)
        self.register_buffer("short_window", torch.hann_window(400), persistent=False)
        self.register_buffer("long_window", torch.hann_window(1024), persistent=False)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        ticks = audio.shape[1] // SAMPLES_PER_TICK
        short = _magnitudes(audio, 512, self.short_window)[:, :, :ticks]
        long = _magnitudes(audio, 2048, self.long_window)[:, :LOW_BINS, :ticks]
        logs = torch.cat([torch.log(self.filters @ short + 1e-3), torch.log(long + 1e-2)], 1)
        return logs.transpose(1, 2) * 0.3


def _magnitudes(audio: torch.Tensor, fft_size: int, window: torch.Tensor) -> torch.Tensor:
    return torch.stft(
        audio,
        fft_size,
        SAMPLES_PER_TICK,
        len(window),
        window,
        center=True,
        pad_mode="constant",
        return_complex=True,
    ).abs()


class Encoder(nn.Module):
    """Audio [B, T * SAMPLES_PER_FRAME] to latents [B, T, LATENT_SIZE]; not causal, used before training
    only."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Features()
        self.features_in = nn.Linear(MELS + LOW_BINS, TICK_WIDTH)
        self.tick_blocks = nn.ModuleList(ConvNeXtBlock(TICK_WIDTH, 2 * TICK_WIDTH, 7) for _ in range(3))
        self.downsample = nn.Conv1d(
            TICK_WIDTH, FRAME_WIDTH, 2 * TICKS_PER_FRAME, TICKS_PER_FRAME, padding=TICKS_PER_FRAME // 2
        )
        self.frame_blocks = nn.ModuleList(ConvNeXtBlock(FRAME_WIDTH, 2 * FRAME_WIDTH, 3) for _ in range(2))
        self.latent_out = nn.Linear(FRAME_WIDTH, LATENT_SIZE)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        x = self.features_in(self.features(audio))
        for block in self.tick_blocks:
            x = cast(ConvNeXtBlock, block).centred(x)
        x = self.downsample(x.transpose(1, 2)).transpose(1, 2)
        for block in self.frame_blocks:
            x = cast(ConvNeXtBlock, block).centred(x)
        return self.latent_out(x)


class Quantised(NamedTuple):
    """latents: [B, T, LATENT_SIZE], with the gradient of the unquantised ones. commitment: a loss.
    used: share of codewords that are alive."""

    latents: torch.Tensor
    commitment: torch.Tensor
    used: float


class Quantiser(Codebooks):
    """Residual vector quantiser learnt by moving averages (van den Oord et al. 2017), with dead codes
    replaced.

    counts, sums: moving averages of how often a codeword is chosen and of what it is chosen for.
    """

    counts: torch.Tensor
    sums: torch.Tensor
    decay = 0.99

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.ones(CODEBOOKS, CODEBOOK_SIZE))
        self.register_buffer("sums", torch.zeros(CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE))

    @torch.no_grad()
    def start(self, latents: torch.Tensor, rounds: int = 12) -> None:
        """Initial codewords by k-means of latents [..., LATENT_SIZE], one codebook after the other."""
        rest = latents.reshape(-1, LATENT_SIZE).clone()
        for index in range(CODEBOOKS):
            means = _random_rows(rest, CODEBOOK_SIZE)
            for _ in range(rounds):
                nearest = _nearest(rest, means)
                count = torch.bincount(nearest, minlength=CODEBOOK_SIZE)[:, None]
                total = torch.zeros_like(means).index_add_(0, nearest, rest)
                means = torch.where(count > 0, total / count.clamp(min=1), _random_rows(rest, CODEBOOK_SIZE))
            self.codewords[index] = means
            self.sums[index] = means
            self.counts[index] = 1
            rest = rest - means[_nearest(rest, means)]

    def encode(self, latents: torch.Tensor) -> torch.Tensor:
        """Codes int64 [..., CODEBOOKS] of latents [..., LATENT_SIZE]."""
        rest, codes = latents, []
        for codewords in self.codewords:
            nearest = _nearest(rest.reshape(-1, LATENT_SIZE), codewords).view(rest.shape[:-1])
            codes.append(nearest)
            rest = rest - codewords[nearest]
        return torch.stack(codes, -1)

    def forward(self, latents: torch.Tensor) -> Quantised:
        rest = latents.detach()
        total = torch.zeros_like(rest)
        commitment = latents.new_zeros(())
        dead = 0
        for index in range(CODEBOOKS):
            flat = rest.reshape(-1, LATENT_SIZE)
            nearest = _nearest(flat, self.codewords[index])
            chosen = self.codewords[index][nearest].view_as(rest)
            if self.training:
                dead += self._learn(index, flat, nearest)
            total = total + chosen
            rest = rest - chosen
            commitment = commitment + F.mse_loss(latents, total)
        straight_through = latents + (total - latents).detach()
        return Quantised(straight_through, commitment / CODEBOOKS, 1 - dead / (CODEBOOKS * CODEBOOK_SIZE))

    @torch.no_grad()
    def _learn(self, index: int, flat: torch.Tensor, nearest: torch.Tensor) -> int:
        """Move a codebook's codewords towards what they were chosen for; returns how many were dead."""
        count = torch.bincount(nearest, minlength=CODEBOOK_SIZE).float()
        total = torch.zeros_like(self.codewords[index]).index_add_(0, nearest, flat)
        self.counts[index].lerp_(count, 1 - self.decay)
        self.sums[index].lerp_(total, 1 - self.decay)
        self.codewords[index] = self.sums[index] / self.counts[index].clamp(min=1e-4)[:, None]
        dead = self.counts[index] < 0.02
        number = int(dead.sum())
        if number:
            self.codewords[index][dead] = _random_rows(flat, number)
            self.counts[index][dead] = 0.3
            self.sums[index][dead] = self.codewords[index][dead] * 0.3
        return number


def _nearest(rows: torch.Tensor, codewords: torch.Tensor) -> torch.Tensor:
    return (codewords.pow(2).sum(1) - 2 * rows @ codewords.t()).argmin(1)


def _random_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    if len(rows) >= count:
        return rows[torch.randperm(len(rows))[:count]].clone()
    return rows[torch.randint(len(rows), (count,))].clone()


class CodecNetwork(nn.Module):
    """Everything with weights, and audio from what the decoder says."""

    noise: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.quantiser = Quantiser()
        self.decoder = Decoder()
        self.synthesis = SourceFilter()
        self.register_buffer("noise", noise_table(), persistent=False)

    def render(self, voicing: Voicing, log_f0: torch.Tensor) -> torch.Tensor:
        """Audio [B, ticks * SAMPLES_PER_TICK] with the pitch given, float32 [B, ticks]; 10 ms late."""
        batch, ticks = log_f0.shape
        start = torch.zeros(batch, dtype=torch.int64)
        pulses, _ = pulse_train(log_f0, torch.zeros(batch), start)
        noise = noise_at(self.noise, start, ticks * SAMPLES_PER_TICK)
        excitation = F.pad(torch.stack([pulses, noise]), (SAMPLES_PER_TICK, 0))
        filtered = self.synthesis.filter(excitation, voicing.harmonic_gain, voicing.noise_gain)
        return overlap_add(filtered, torch.zeros(batch, TAIL_TICKS, SAMPLES_PER_TICK))[0]

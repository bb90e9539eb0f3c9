"""Step 3: train the codec.

    python -m voices.wren.training.train_codec WORK [--steps 2850] [--resume]

Writes WORK/codec.safetensors. The decoder's source-filter synthesis needs no adversary: it learns from
spectral losses alone, which is what makes this possible on a CPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from backends.families.wren.geometry import SAMPLES_PER_TICK, TICKS_PER_FRAME
from voices.wren.training import checkpoints
from voices.wren.training.codec_network import CodecNetwork, mel_filters
from voices.wren.training.speech import Speech

FFT_SIZES = (256, 512, 1024)
SAVE_EVERY = 500
REPORT_EVERY = 100


@dataclass(frozen=True)
class CodecTraining:
    """steps: of gradient descent. batch: segments a step, frames: of each segment. quantise_from: step
    at which the codebooks start, from the latents of the `gather` steps before it. seed: of weights,
    data and codebooks."""

    steps: int = 2850
    batch: int = 12
    frames: int = 16
    learning_rate: float = 1e-3
    quantise_from: int = 250
    gather: int = 40
    seed: int = 0


def spectral_loss(
    made: torch.Tensor, wanted: torch.Tensor, filters: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-resolution STFT loss plus log-mel distance, and that distance alone. made, wanted: [B,
    samples]."""
    loss = made.new_zeros(())
    mel = made.new_zeros(())
    for size in FFT_SIZES:
        a, b = _spectrum(made, size), _spectrum(wanted, size)
        convergence = (a - b).norm() / (b.norm() + 1e-3)
        loss = loss + F.l1_loss(torch.log(a + 2e-3), torch.log(b + 2e-3)) + 0.5 * convergence
        if size == FFT_SIZES[-1]:
            mel = F.l1_loss(torch.log(filters @ a + 1e-3), torch.log(filters @ b + 1e-3))
    return loss / len(FFT_SIZES) + mel, mel


def _spectrum(audio: torch.Tensor, size: int) -> torch.Tensor:
    window = torch.hann_window(size)
    return torch.stft(audio, size, size // 4, size, window, center=True, return_complex=True).abs()


def draw_batch(speech: Speech, settings: CodecTraining, rng: np.random.Generator) -> list[torch.Tensor]:
    """Audio [B, samples], log F0 and voicing [B, ticks] of random segments."""
    chosen = rng.integers(0, len(speech.utterances), settings.batch)
    ticks = settings.frames * TICKS_PER_FRAME
    rows = [speech.segment(int(index), ticks, rng) for index in chosen]
    return [torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True)]


def train(speech: Speech, settings: CodecTraining, path: Path, resume: bool = False) -> list[float]:
    """Train and write `path`; returns the loss of each step. resume: go on from what `path` holds."""
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    network = CodecNetwork()
    if resume:
        checkpoints.load(network, path)
    optimiser = torch.optim.AdamW(
        network.parameters(), settings.learning_rate, betas=(0.8, 0.95), weight_decay=0.01
    )
    filters = mel_filters(80, FFT_SIZES[-1])
    quantising = resume
    gathered: list[torch.Tensor] = []
    parts: list[list[float]] = []
    begin = time.monotonic()
    for step in range(settings.steps):
        rate = settings.learning_rate * min(1, (step + 1) / 100) * (0.02 + 0.98 * (1 - step / settings.steps))
        for group in optimiser.param_groups:
            group["lr"] = rate
        audio, log_f0, voiced = draw_batch(speech, settings, rng)
        latents = network.encoder(audio)
        if not quantising and step >= settings.quantise_from - settings.gather:
            gathered.append(latents.detach())
            if step >= settings.quantise_from:
                network.quantiser.start(torch.cat(gathered))
                gathered.clear()
                quantising = True
        if quantising:
            quantised, commitment, used = network.quantiser(latents)
        else:
            quantised, commitment, used = latents, 0.01 * latents.pow(2).mean(), 0.0
        voicing = network.decoder(quantised)
        made = network.render(voicing, log_f0)  # with the teacher's pitch, so that phases agree
        spectral, mel = spectral_loss(made[:, SAMPLES_PER_TICK:], audio[:, :-SAMPLES_PER_TICK], filters)
        pitch = ((voicing.log_f0 - log_f0).abs() * (voiced + 0.1)).mean()
        voicing_loss = F.binary_cross_entropy_with_logits(voicing.voiced, voiced)
        loss = spectral + 4 * pitch + 0.1 * voicing_loss + commitment
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimiser.step()
        parts.append([float(part.detach()) for part in (loss, mel, pitch, voicing_loss, commitment)])
        if (step + 1) % REPORT_EVERY == 0:
            total, mel_mean, pitch_mean, voiced_mean, commit = np.mean(parts[-REPORT_EVERY:], 0)
            print(
                f"step {step + 1} {time.monotonic() - begin:.0f} s: loss {total:.3f} mel {mel_mean:.3f} "
                f"log F0 {pitch_mean:.4f} voicing {voiced_mean:.3f} commitment {commit:.4f} codes used {used:.2f}",
                flush=True,
            )
        if (step + 1) % SAVE_EVERY == 0:
            checkpoints.save(network, path)
    checkpoints.save(network, path)
    return [part[0] for part in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=CodecTraining.steps)
    parser.add_argument("--learning-rate", type=float, default=CodecTraining.learning_rate)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    settings = CodecTraining(steps=options.steps, learning_rate=options.learning_rate)
    train(Speech.in_folder(options.work), settings, options.work / checkpoints.CODEC, options.resume)


if __name__ == "__main__":
    main()

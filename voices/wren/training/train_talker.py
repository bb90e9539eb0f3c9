"""Step 5: train the talker.

    python -m voices.wren.training.train_talker WORK [--steps 2720] [--resume]

Writes WORK/talker.safetensors. Teacher-forced: all frames of an utterance at once, each told its own
phones and the previous frame's latent, which is corrupted now and then so that the talker learns to
recover from its own errors.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F

from backends.families.wren.geometry import CODEBOOK_SIZE, CODEBOOKS, TICKS_PER_FRAME
from backends.families.wren.network import TalkerNetwork
from backends.families.wren.step_input import LOOK_AHEAD
from voices.wren.training import checkpoints
from voices.wren.training.alignments import Example, load_examples
from voices.wren.training.codec_network import CodecNetwork

# Weight of each codebook's loss; of the later ones only a few are computed a step, and counted
# accordingly more.
CODE_WEIGHTS = (1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3)
LATER_CODEBOOKS_A_STEP = 3
CORRUPTED_FRAMES = 0.1
DROPPED_FRAMES = 0.05
SAVE_EVERY = 300
REPORT_EVERY = 50
BUCKET = 1024  # utterances that are sorted by length together


@dataclass(frozen=True)
class TalkerTraining:
    """steps: of gradient descent. frames: about so many a step. validation: utterances kept for it, at
    most a tenth of all. seed: of weights, order and corruption."""

    steps: int = 2720
    frames: int = 1000
    learning_rate: float = 1.2e-3
    phone_dropout: float = 0.1
    alignment_dropout: float = 0.15
    validation: int = 60
    seed: int = 0


class Batch(NamedTuple):
    """B utterances of at most P phones and T - 1 frames, with the begin step in front.

    features: [B, P, 6]. phones: [B], how many of them. codes: [B, T, CODEBOOKS]. ticks, elapsed: [B, T,
    TICKS_PER_FRAME]. pointer, pointer_elapsed: [B, T]. patterns: [B, T], of the following frame. valid:
    float [B, T]. lengths: [B], frames with the begin step. latents: [B, T, LATENT_SIZE], of the
    previous frame, in units of the codebooks' scale.
    """

    features: torch.Tensor
    phones: torch.Tensor
    codes: torch.Tensor
    ticks: torch.Tensor
    elapsed: torch.Tensor
    pointer: torch.Tensor
    pointer_elapsed: torch.Tensor
    patterns: torch.Tensor
    valid: torch.Tensor
    lengths: torch.Tensor
    latents: torch.Tensor


class Losses(NamedTuple):
    """alignment, codes (of each codebook computed) and regression of the latent; total is what is
    minimised."""

    alignment: torch.Tensor
    codes: dict[int, torch.Tensor]
    regression: torch.Tensor
    total: torch.Tensor


class TalkerTrainer:
    """Network, codebooks and losses."""

    def __init__(self, codewords: torch.Tensor, settings: TalkerTraining) -> None:
        """codewords: float32 [CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE] of the trained codec."""
        self.codewords = codewords
        self.scale = float(codewords[0].std())
        self.settings = settings
        self.network = TalkerNetwork()
        initialise(self.network)

    def collate(self, examples: Sequence[Example], corrupt: bool) -> Batch:
        lengths = torch.tensor([len(example.codes) + 1 for example in examples])
        frames = int(lengths.max())
        phones = torch.tensor([len(example.features) for example in examples])

        def stack(name: str, *width: int, first: int = 1, rows: int = frames) -> torch.Tensor:
            result = torch.zeros(len(examples), rows, *width, dtype=torch.int64)
            for row, example in zip(result, examples, strict=True):
                values = torch.from_numpy(getattr(example, name).astype(np.int64))
                row[first : first + len(values)] = values
            return result

        codes = stack("codes", CODEBOOKS)
        valid = (torch.arange(frames) < lengths[:, None]).float()
        return Batch(
            features=stack("features", 6, first=0, rows=int(phones.max())),
            phones=phones,
            codes=codes,
            ticks=stack("ticks", TICKS_PER_FRAME),
            elapsed=stack("elapsed", TICKS_PER_FRAME),
            pointer=stack("pointer"),
            pointer_elapsed=stack("pointer_elapsed"),
            patterns=stack("patterns", first=0),
            valid=valid,
            lengths=lengths,
            latents=self._previous_latents(codes, corrupt),
        )

    def _previous_latents(self, codes: torch.Tensor, corrupt: bool) -> torch.Tensor:
        batch, frames, _ = codes.shape
        if corrupt:  # from a random codebook on, other codes
            hit = torch.rand(batch, frames, 1) < CORRUPTED_FRAMES
            hit = hit & (torch.arange(CODEBOOKS) >= torch.randint(0, CODEBOOKS, (batch, frames, 1)))
            codes = torch.where(hit, torch.randint(0, CODEBOOK_SIZE, codes.shape), codes)
        latents = torch.stack([self.codewords[q][codes[..., q]] for q in range(CODEBOOKS)]).sum(0)
        latents[:, 0] = 0
        previous = F.pad(latents[:, :-1], (0, 0, 1, 0))
        if corrupt:
            previous = previous * (torch.rand(batch, frames, 1) > DROPPED_FRAMES)
            previous = previous + torch.randn_like(previous) * previous.std() * 0.1 * torch.rand(batch, 1, 1)
        return previous / self.scale

    def losses(self, batch: Batch, codebooks: Sequence[int]) -> Losses:
        """codebooks: those whose codes are scored."""
        network, settings = self.network, self.settings
        encoded = network.phone_encoder(batch.features, batch.phones)
        phones = F.dropout(encoded, settings.phone_dropout, network.training)
        hidden = network.backbone(
            network.step_input(
                F.pad(phones, (0, 0, 0, LOOK_AHEAD)),
                ticks=batch.ticks,
                elapsed=batch.elapsed,
                pointer=batch.pointer,
                pointer_elapsed=batch.pointer_elapsed,
                latents=batch.latents,
            )
        )
        followed = batch.valid * (torch.arange(batch.valid.shape[1]) < batch.lengths[:, None] - 1)
        logits = network.alignment(F.dropout(hidden, settings.alignment_dropout, network.training))
        alignment = F.cross_entropy(logits.transpose(1, 2), batch.patterns, reduction="none")
        alignment = (alignment * followed).sum() / followed.sum()

        spoken = batch.valid > 0
        spoken[:, 0] = False
        hidden, codes = hidden[spoken], batch.codes[spoken]
        latent = network.depth.regression(hidden) * self.scale
        partial = torch.zeros_like(latent)
        code_losses = {}
        for index in range(CODEBOOKS):
            if index in codebooks:
                logits = network.depth(
                    index,
                    hidden,
                    latent=latent,
                    partial=partial,
                    codewords=self.codewords[index],
                    latent_scale=self.scale,
                )
                code_losses[index] = F.cross_entropy(logits, codes[:, index])
            partial = partial + self.codewords[index][codes[:, index]]
        regression = ((latent - partial) / self.scale).pow(2).mean()
        later = sum(index > 0 for index in code_losses)
        weighted = [
            loss * CODE_WEIGHTS[index] * (1 if index == 0 else (CODEBOOKS - 1) / later)
            for index, loss in code_losses.items()
        ]
        total = alignment + 0.5 * torch.stack(weighted).sum() + 0.5 * regression
        return Losses(alignment, code_losses, regression, total)


def initialise(network: TalkerNetwork) -> None:
    """Start values: wide embeddings, timid residual branches, depth logits from the distances alone."""
    embeddings = [*network.phone_encoder.embeddings.values()]
    for module in (*embeddings, network.step_input.tick_elapsed, network.step_input.pointer_elapsed):
        torch.nn.init.normal_(cast(torch.nn.Embedding, module).weight, std=0.3)
    for parameter in network.depth.logits.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        for layer in network.backbone.stack():
            layer.attention_out.weight.mul_(0.4)
            layer.down.weight.mul_(0.4)


def batches(examples: Sequence[Example], frames: int, rng: random.Random) -> Iterator[list[Example]]:
    """Batches of about `frames` frames, utterances of like length together, in random order, for ever."""
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        made: list[list[Example]] = []
        for begin in range(0, len(order), BUCKET):
            bucket = sorted((examples[i] for i in order[begin : begin + BUCKET]), key=lambda e: len(e.codes))
            batch: list[Example] = []
            for example in bucket:
                if batch and (len(example.codes) + 1) * (len(batch) + 1) > frames:
                    made.append(batch)
                    batch = []
                batch.append(example)
            made.append(batch)
        rng.shuffle(made)
        yield from made


def train(
    examples: Sequence[Example],
    codewords: torch.Tensor,
    settings: TalkerTraining,
    path: Path,
    resume: bool = False,
) -> list[float]:
    """Train and write `path`; returns the loss of each step. resume: go on from what `path` holds."""
    torch.manual_seed(settings.seed)
    rng = random.Random(settings.seed)
    trainer = TalkerTrainer(codewords, settings)
    network = trainer.network
    if resume:
        checkpoints.load(network, path)
    optimiser = torch.optim.AdamW(
        network.parameters(), settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.02, fused=True
    )
    kept = min(settings.validation, len(examples) // 10)
    held_out, seen = list(examples[:kept]), examples[kept:]
    stream = batches(seen, settings.frames, rng)
    losses: list[float] = []
    begin = time.monotonic()
    for step in range(settings.steps):
        rate = settings.learning_rate * min(1, (step + 1) / 100) * max(0.02, 1 - step / settings.steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        scored = [0, *rng.sample(range(1, CODEBOOKS), LATER_CODEBOOKS_A_STEP)]
        loss = trainer.losses(trainer.collate(next(stream), corrupt=True), scored)
        optimiser.zero_grad()
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.total.detach()))
        if (step + 1) % REPORT_EVERY == 0:
            mean = np.mean(losses[-REPORT_EVERY:])
            print(f"step {step + 1} {time.monotonic() - begin:.0f} s: loss {mean:.3f}", flush=True)
        if (step + 1) % SAVE_EVERY == 0:
            checkpoints.save(network, path)
            if held_out:
                print(f"validation: {validate(trainer, held_out)}", flush=True)
    checkpoints.save(network, path)
    return losses


@torch.no_grad()
def validate(trainer: TalkerTrainer, examples: Sequence[Example]) -> str:
    trainer.network.eval()
    losses = trainer.losses(trainer.collate(examples, corrupt=False), range(CODEBOOKS))
    trainer.network.train()
    codes = " ".join(f"{float(loss):.2f}" for loss in losses.codes.values())
    return f"alignment {float(losses.alignment):.3f} codes {codes} regression {float(losses.regression):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=TalkerTraining.steps)
    parser.add_argument("--learning-rate", type=float, default=TalkerTraining.learning_rate)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    examples = [
        e for e in load_examples(sorted(options.work.glob("examples-*.npz"))) if 8 <= len(e.codes) <= 120
    ]
    if not examples:
        parser.error(f"{options.work} holds no examples-NN.npz; run the step prepare first")
    codec = CodecNetwork()
    checkpoints.load(codec, options.work / checkpoints.CODEC)
    settings = TalkerTraining(steps=options.steps, learning_rate=options.learning_rate)
    train(examples, codec.quantiser.codewords, settings, options.work / checkpoints.TALKER, options.resume)


if __name__ == "__main__":
    main()

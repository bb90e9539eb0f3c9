"""wren's codec as the codec engine runs it: codes to audio over slots that hold all history."""

from __future__ import annotations

import math

import torch
from torch import nn

from backends.codec import Codec, DecodeOutput
from backends.families.wren import decoder as network
from backends.families.wren.excitation import noise_at, noise_table, pulse_train, quantise_log_f0
from backends.families.wren.geometry import (
    CODEBOOK_SIZE,
    CODEBOOKS,
    FRAME_SPEC,
    SAMPLES_PER_FRAME,
    SAMPLES_PER_TICK,
)
from backends.families.wren.linear import column_major
from backends.families.wren.synthesis import TAIL_TICKS, SourceFilter, overlap_add

# What a slot remembers in float32, in this order: a name and a shape.
HISTORY = {
    "frames": (network.FRAME_BLOCKS, network.FRAME_KERNEL - 1, network.FRAME_WIDTH),
    "ticks": (network.TICK_BLOCKS, network.TICK_KERNEL - 1, network.TICK_WIDTH),
    "excitation": (2, SAMPLES_PER_TICK),  # pulses and noise of the last tick
    "tail": (TAIL_TICKS, SAMPLES_PER_TICK),  # sound that reaches beyond the last tick
    "log_f0": (1,),  # of the last tick, 0 before the first
}
HISTORY_SIZE = sum(math.prod(shape) for shape in HISTORY.values())


class WrenCodec(Codec):
    """Stateful causal decoder: T frames in, T * 1280 samples out, whatever the cuts.

    The audio of frame t spans samples 1280 t to 1280 (t + 1) of the output and is heard 10 ms late:
    windows are centred on tick boundaries, so the first 160 samples are the onset of the first window
    and the last tick's release is not played.

    State: `history` float32 [slots + 1, HISTORY_SIZE], one row a slot so that a call gathers and
    scatters once; `clock` int64 [slots + 1, 2], samples decoded and the pulse phase.
    """

    spec = FRAME_SPEC
    mode = "state"

    def __init__(self, codebooks: torch.Tensor, decoder: network.Decoder, device: torch.device) -> None:
        """codebooks: float32 [CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE]."""
        self.device = device
        self.decoder = decoder.to(device).eval().requires_grad_(False)
        column_major(self.decoder)
        self.synthesis = SourceFilter().to(device)
        self.codewords = codebooks.reshape(CODEBOOKS * CODEBOOK_SIZE, -1).to(device)
        self.codeword_offsets = torch.arange(CODEBOOKS, device=device) * CODEBOOK_SIZE
        self.noise = noise_table().to(device)
        self.allocate(0)

    def allocate(self, slots: int) -> None:
        self.history = torch.zeros(slots + 1, HISTORY_SIZE, device=self.device)
        self.clock = torch.zeros(slots + 1, 2, dtype=torch.int64, device=self.device)

    def slot_bytes(self) -> int:
        return HISTORY_SIZE * self.history.element_size() + 2 * self.clock.element_size()

    def open(self, slots: torch.Tensor) -> None:
        self.history.index_fill_(0, slots, 0)
        self.clock.index_fill_(0, slots, 0)

    @torch.inference_mode()
    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        batch, count, _ = frames.shape
        samples = count * SAMPLES_PER_FRAME
        history = self.history.index_select(0, slots)
        clock = self.clock.index_select(0, slots)
        past = {
            name: part.view(batch, *shape)
            for (name, shape), part in zip(
                HISTORY.items(), history.split([math.prod(s) for s in HISTORY.values()], 1), strict=True
            )
        }
        latents = nn.functional.embedding_bag(
            (frames + self.codeword_offsets).view(batch * count, CODEBOOKS), self.codewords, mode="sum"
        ).view(batch, count, -1)
        voicing = self.decoder(latents, past["frames"], past["ticks"])
        log_f0 = quantise_log_f0(voicing.log_f0)
        first = clock[:, 0].clone()
        pulses, phase = pulse_train(log_f0, past["log_f0"][:, 0], clock[:, 1])
        excitation = torch.cat(
            [past["excitation"], torch.stack([pulses, noise_at(self.noise, first, samples)], 1)], 2
        )
        filtered = self.synthesis.filter(
            excitation.transpose(0, 1), voicing.harmonic_gain, voicing.noise_gain
        )
        pcm, tail = overlap_add(filtered, past["tail"])

        past["excitation"].copy_(excitation[:, :, samples:])
        past["tail"].copy_(tail)
        past["log_f0"].copy_(log_f0[:, -1:])
        clock[:, 0] += samples
        clock[:, 1] = phase
        self.history.index_copy_(0, slots, history)
        self.clock.index_copy_(0, slots, clock)
        return DecodeOutput(pcm=pcm.clamp_(-1, 1)[:, None], first=first, count=lengths * SAMPLES_PER_FRAME)

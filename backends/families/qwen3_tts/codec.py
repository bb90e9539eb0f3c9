"""Qwen3-TTS's codec as the codec engine runs it: a decoder over slots, exact for any cut of the frames."""

from __future__ import annotations

import torch

from backends.codec import Codec, DecodeOutput
from backends.families.qwen3_tts.decoder import Decoder
from backends.frames import FrameSpec
from backends.layers.snake import freeze
from backends.layers.state import SlotCall, allocate, reset, slot_bytes


class Qwen3Codec(Codec):
    """T frames in, T * 1920 samples out; no look-ahead. decoder: with its weights, on its device."""

    mode = "state"

    def __init__(self, decoder: Decoder, spec: FrameSpec) -> None:
        self.spec = spec
        self.decoder = decoder.eval().requires_grad_(False)
        freeze(decoder)
        self.device = decoder.codewords.device
        self.allocate(0)

    def allocate(self, slots: int) -> None:
        allocate(self.decoder, slots)

    def slot_bytes(self) -> int:
        return slot_bytes(self.decoder)

    def open(self, slots: torch.Tensor) -> None:
        reset(self.decoder, slots)

    @torch.inference_mode()
    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        size = self.spec.samples_per_frame
        call = SlotCall(slots)
        # The transformer's position is the stream's clock.
        first = call.read(self.decoder.transformer.state["position"]) * size
        pcm = self.decoder(frames, call).float()
        call.commit()
        return DecodeOutput(pcm=pcm, first=first, count=lengths * size)

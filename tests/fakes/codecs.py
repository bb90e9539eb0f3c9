"""Tiny random codecs, one for each way in which real decoders turn frames into sound.

`whole` is the definition of right: one decode of all frames of an utterance, without slots, chunks or
padding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from backends.codec import Codec, DecodeOutput
from backends.frames import FrameSpec
from backends.layers.backbone import Backbone, BackboneConfig, StreamingTransformer
from backends.layers.conv import CausalConv1d, CausalTransposedConv1d
from backends.layers.convnext import CausalConvNeXt
from backends.layers.snake import Snake, SnakeBeta
from backends.layers.state import SlotCall, allocate, reset, slot_bytes

WIDTH = 8
CPU = torch.device("cpu")


class TinyCodec(Codec):
    """Embeds codes (or projects latents); subclasses turn the sum into sound."""

    device = CPU

    def __init__(self, spec: FrameSpec, seed: int) -> None:
        self.spec = spec
        torch.manual_seed(seed)
        self.latents = nn.Linear(spec.width, WIDTH) if spec.kind == "latent" else None
        self.codes = nn.Embedding(sum(spec.sizes) or 1, WIDTH)
        self.offsets = torch.tensor([sum(spec.sizes[:k]) for k in range(len(spec.sizes))])
        self.network = self.build()
        for module in self.network.modules():
            if isinstance(module, nn.Conv1d | nn.ConvTranspose1d | nn.Linear):
                nn.init.normal_(module.weight, std=0.8 / module.weight[0].numel() ** 0.5)
        self.network.eval().requires_grad_(False)
        self.allocate(0)

    def build(self) -> nn.Module:
        raise NotImplementedError

    def embed(self, frames: torch.Tensor) -> torch.Tensor:
        """frames [B, T, width] to [B, WIDTH, T]."""
        if self.latents is not None:
            return self.latents(frames).transpose(1, 2)
        return self.codes(frames + self.offsets).mean(2).transpose(1, 2)

    def allocate(self, slots: int) -> None:
        allocate(self.network, slots)

    def slot_bytes(self) -> int:
        return slot_bytes(self.network)

    def open(self, slots: torch.Tensor) -> None:
        reset(self.network, slots)

    def whole(self, frames: np.ndarray) -> np.ndarray:
        """frames [n, width] to samples [channels, m]."""
        with torch.inference_mode():
            return self._whole(torch.from_numpy(frames.astype(self._numpy_dtype))[None])[0].numpy()

    @property
    def _numpy_dtype(self) -> type:
        return np.int64 if self.spec.kind == "codes" else np.float32

    def _whole(self, frames: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class _CausalNetwork(nn.Module):
    """Transformer, then upsampling in two stages: the plan of Mimi, Pocket-TTS and the Qwen3-TTS decoder."""

    def __init__(self, strides: tuple[int, int]) -> None:
        super().__init__()
        first, second = strides
        self.before = CausalConv1d(WIDTH, WIDTH, 3)
        self.transformer = StreamingTransformer(
            BackboneConfig(
                hidden=WIDTH, layers=2, heads=2, kv_heads=1, head_dim=4, intermediate=16, norm="layer",
                layer_scale=True, window=5,
            )
        )  # fmt: skip
        self.up_1 = CausalTransposedConv1d(WIDTH, WIDTH, 2 * first, first)
        self.mix = CausalConvNeXt(WIDTH, 5, 2)
        self.snake = SnakeBeta(WIDTH)
        self.up_2 = CausalTransposedConv1d(WIDTH, WIDTH, 2 * second, second)
        self.residual = CausalConv1d(WIDTH, WIDTH, 3, dilation=3)
        self.after = CausalConv1d(WIDTH, 1, 7)

    def forward(self, x: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        x = self.before(x, call)
        x = x + self.transformer(x.transpose(1, 2), call).transpose(1, 2)
        x = self.mix(self.up_1(x, call), call)
        x = self.up_2(self.snake(x), call)
        x = x + self.residual(torch.tanh(x), call)
        return torch.tanh(self.after(x, call))


class StateCodec(TinyCodec):
    """Causal decoder with state (Mimi, Pocket-TTS, Qwen3-TTS, MOSS).

    Two channels are interleaved in time by the network, which runs at twice the rate (MOSS Local, 48 kHz).
    """

    mode = "state"

    def build(self) -> nn.Module:
        rate = self.spec.samples_per_frame * self.spec.channels
        first = 4
        return _CausalNetwork((first, rate // first))

    def allocate(self, slots: int) -> None:
        super().allocate(slots)
        self.clock = torch.zeros(slots + 1, dtype=torch.int64)

    def open(self, slots: torch.Tensor) -> None:
        super().open(slots)
        self.clock.index_fill_(0, slots, 0)

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        call = SlotCall(slots)
        pcm = self._split(self.network(self.embed(frames), call))
        first = call.read(self.clock)
        call.write(self.clock, first + lengths * self.spec.samples_per_frame)
        call.commit()
        return DecodeOutput(pcm, first, lengths * self.spec.samples_per_frame)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1, self.spec.channels).transpose(1, 2)

    def _whole(self, frames: torch.Tensor) -> torch.Tensor:
        return self._split(self.network(self.embed(frames)))


class _TwoSidedNetwork(nn.Module):
    """Non-causal convolutions with zeros at both ends (SNAC, DAC)."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.before = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.snake = Snake(WIDTH)
        self.up = nn.ConvTranspose1d(WIDTH, WIDTH, 2 * stride, stride, padding=stride // 2)
        self.after = nn.Conv1d(WIDTH, 1, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.after(self.snake(self.up(self.snake(self.before(x))))))


class WindowCodec(TinyCodec):
    """Non-causal decoder without state: exact with `left` frames before and `right` frames after (SNAC, DAC).

    SNAC's frame of seven codes holds three layers of one, two and four codes at rising rates.
    """

    mode = "window"
    left = right = 2

    def build(self) -> nn.Module:
        return _TwoSidedNetwork(self.spec.samples_per_frame)

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        pcm = self.network(self.embed(frames))
        return DecodeOutput(pcm, torch.zeros_like(lengths), lengths * self.spec.samples_per_frame)

    def _whole(self, frames: torch.Tensor) -> torch.Tensor:
        return self.network(self.embed(frames))


class _TrimmedNetwork(nn.Module):
    """Causal convolutions, but transposed ones trimmed on both sides by kernel - stride (Qwen3-Omni
    code2wav)."""

    def __init__(self, strides: tuple[int, ...]) -> None:
        super().__init__()
        self.before = nn.Conv1d(WIDTH, WIDTH, 3)
        self.ups = nn.ModuleList(nn.ConvTranspose1d(WIDTH, WIDTH, 2 * s, s, padding=s) for s in strides)
        self.after = nn.Conv1d(WIDTH, 1, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(F.pad(x, (2, 0)))
        x = x[..., None].expand(-1, -1, -1, 2).flatten(2)
        for up in self.ups:
            x = up(torch.tanh(x))
        return torch.tanh(self.after(F.pad(x, (6, 0))))


class TrimmedCodec(TinyCodec):
    """Each call makes fewer samples than its frames are long, and the difference is look-ahead, not loss:
    the next call makes them. Only the end of a stream really loses them (Qwen3-Omni: 555 of them)."""

    mode = "window"
    left = 4

    def __init__(self, spec: FrameSpec, seed: int, strides: tuple[int, ...]) -> None:
        self.strides = strides
        self.tail_loss = 0
        for stride in strides:
            self.tail_loss = (self.tail_loss + 1) * stride
        super().__init__(spec, seed)

    def build(self) -> nn.Module:
        return _TrimmedNetwork(self.strides)

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        pcm = self.network(self.embed(frames))
        return DecodeOutput(pcm, torch.zeros_like(lengths), torch.full_like(lengths, pcm.shape[2]))

    def _whole(self, frames: torch.Tensor) -> torch.Tensor:
        return self.network(self.embed(frames))


class RerunCodec(TinyCodec):
    """Runs over the whole stream each time (CosyVoice3's flow decoder).

    Attention is causal by blocks of `hop` frames and a convolution looks `right` frames ahead, so the sound
    of complete blocks does not change when more frames come. Noise is a fixed buffer by position, as there.
    """

    mode = "rerun"
    hop = 4
    right = 3
    longest = 64

    def build(self) -> nn.Module:
        self.ahead = nn.Conv1d(WIDTH, WIDTH, self.right + 1)
        self.start = torch.randn(1, 400, WIDTH, generator=torch.Generator().manual_seed(0))
        self.field = Backbone(
            BackboneConfig(hidden=WIDTH, layers=2, heads=2, kv_heads=2, head_dim=4, intermediate=16)
        )
        self.sound = nn.Linear(WIDTH, self.spec.samples_per_frame)
        return nn.ModuleList([self.ahead, self.field, self.sound])

    def decode(
        self, slots: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor, final: torch.Tensor
    ) -> DecodeOutput:
        made = torch.where(final, lengths, lengths - self.right)
        pcm = self._flow(frames, lengths, made)
        return DecodeOutput(pcm, torch.zeros_like(made), made * self.spec.samples_per_frame)

    def _flow(self, frames: torch.Tensor, lengths: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        place = torch.arange(frames.shape[1])
        x = self.embed(frames) * (place < lengths[:, None])[:, None]
        condition = self.ahead(F.pad(x, (0, self.right))).transpose(1, 2)
        block = place // self.hop
        mask = (block[:, None] >= block) & (place < made[:, None])[:, None, :]
        mask = mask | (place[:, None] == place)  # a query that counts for nothing still needs a key
        y = self.start[:, : frames.shape[1]].expand(frames.shape[0], -1, -1)
        for _ in range(2):
            cache = self.field.local_cache()
            cache.mask = mask[:, None]
            y = y + 0.5 * self.field(y + condition, place.expand(frames.shape[0], -1), cache)
        return torch.tanh(self.sound(y)).flatten(1)[:, None]

    def _whole(self, frames: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([frames.shape[1]])
        return self._flow(frames, lengths, lengths)

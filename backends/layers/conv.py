"""Causal convolutions that continue from slot state: any cut of the input gives the output of the whole.

Channels first, [B, C, T], as torch has it. The layouts are those of Encodec, Mimi and Qwen3-TTS decoders:
zeros before the first sample, transposed convolutions trimmed on the right.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from backends.layers.state import SlotCall, StreamingModule


class CausalConv1d(StreamingModule):
    """Convolution of stride 1 that sees only the past. State: the last (kernel - 1) * dilation inputs."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        kernel: int,
        *,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, out_channels, kernel, dilation=dilation, groups=groups, bias=bias)
        self.history = (kernel - 1) * dilation

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"past": (self.conv.in_channels, self.history)} if self.history else {}

    def forward(self, x: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        """x: [B, C, T]. Returns [B, out_channels, T]."""
        if not self.history:
            return self.conv(x)
        if call is None:
            return self.conv(F.pad(x, (self.history, 0)))
        x = torch.cat([self.recall("past", x, call), x], dim=2)
        call.write(self.state["past"], x[:, :, -self.history :])
        return self.conv(x)


class CausalTransposedConv1d(StreamingModule):
    """Upsampling by `stride`; output t * stride on depends on inputs up to t.

    State: the part of the last outputs that later inputs add to (kernel - stride samples), so that nothing
    is computed twice. The untrimmed output would be kernel - stride samples longer: that tail is what a
    stream never plays.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        *,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if kernel < stride:
            raise ValueError(f"kernel is {kernel}; it must be at least the stride, {stride}")
        self.conv = nn.ConvTranspose1d(channels, out_channels, kernel, stride, groups=groups, bias=bias)
        self.stride = stride
        self.overlap = kernel - stride

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"tail": (self.conv.out_channels, self.overlap)} if self.overlap else {}

    def _spread(self, x: torch.Tensor) -> torch.Tensor:
        """The untrimmed output without bias, [B, out_channels, (T - 1) * stride + kernel].

        Where the kernel is a multiple of the stride this is one matrix product whose parts are added where
        they overlap: ten times faster on a CPU than the library's convolution, where inputs are few.
        """
        conv, batch, count = self.conv, x.shape[0], x.shape[2]
        parts, rest = divmod(conv.kernel_size[0], self.stride)
        if conv.groups > 1 or rest:
            return F.conv_transpose1d(x, conv.weight, None, conv.stride, groups=conv.groups)
        y = (x.transpose(1, 2) @ conv.weight.view(conv.in_channels, -1)).view(
            batch, count, conv.out_channels, parts, self.stride
        )
        y = y.permute(3, 0, 2, 1, 4)
        total = y[0] if parts == 1 else F.pad(y[0], (0, 0, 0, parts - 1))
        for part in range(1, parts):
            total[:, :, part : part + count] += y[part]
        return total.flatten(2)

    def forward(self, x: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        """x: [B, C, T]. Returns [B, out_channels, T * stride]."""
        samples = x.shape[2] * self.stride
        y = self._spread(x)
        if call is not None and self.overlap:
            y[:, :, : self.overlap] += call.read(self.state["tail"])
            call.write(self.state["tail"], y[:, :, samples:])
        y = y[:, :, :samples]
        return y if self.conv.bias is None else y + self.conv.bias[:, None]

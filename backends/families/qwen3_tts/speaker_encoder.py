"""The x-vector of a reference: ECAPA-TDNN over the log mel spectrogram.

Desplanques et al., "ECAPA-TDNN: Emphasized Channel Attention, Propagation and Aggregation in TDNN Based
Speaker Verification", 2020; as `Qwen3TTSSpeakerEncoder` in qwen-tts 0.1.1 lays it out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from backends.families.qwen3_tts.config import SpeakerEncoderSizes
from backends.families.qwen3_tts.reference_audio import HOP, log_mel
from backends.families.qwen3_tts.weights import Tensors


class SpeakerEncoder:
    """tensors: weights without the prefix `speaker_encoder.`, float32."""

    def __init__(self, sizes: SpeakerEncoderSizes, tensors: Tensors) -> None:
        self.sizes = sizes
        self._weights = tensors
        self._device = tensors["fc.weight"].device

    @property
    def shortest(self) -> int:
        """Samples that a reference must have, so that reflection at its ends has something to reflect."""
        reach = max(d * (k - 1) // 2 for k, d in zip(self.sizes.kernels, self.sizes.dilations, strict=True))
        return (reach + 1) * HOP

    def _conv(self, name: str, x: torch.Tensor, dilation: int = 1) -> torch.Tensor:
        weight = self._weights[f"{name}.weight"]
        reach = dilation * (weight.shape[2] - 1)
        if reach:
            x = F.pad(x, (reach // 2, reach - reach // 2), mode="reflect")
        return F.conv1d(x, weight, self._weights[f"{name}.bias"], dilation=dilation)

    def _tdnn(self, name: str, x: torch.Tensor, dilation: int = 1) -> torch.Tensor:
        return F.relu(self._conv(f"{name}.conv", x, dilation))

    def _se_res2net(self, name: str, x: torch.Tensor, dilation: int) -> torch.Tensor:
        residual = x
        parts = self._tdnn(f"{name}.tdnn1", x).chunk(self.sizes.scale, dim=1)
        outputs = [parts[0]]
        for i, part in enumerate(parts[1:]):
            joined = part + outputs[-1] if i else part
            outputs.append(self._tdnn(f"{name}.res2net_block.blocks.{i}", joined, dilation))
        x = self._tdnn(f"{name}.tdnn2", torch.cat(outputs, dim=1))
        gate = F.relu(self._conv(f"{name}.se_block.conv1", x.mean(dim=2, keepdim=True)))
        return x * torch.sigmoid(self._conv(f"{name}.se_block.conv2", gate)) + residual

    @staticmethod
    def _statistics(x: torch.Tensor, weight: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
        mean = (weight * x).sum(2, keepdim=True)
        return mean, torch.sqrt((weight * (x - mean).pow(2)).sum(2, keepdim=True).clamp(1e-12))

    def _attentive_pooling(self, x: torch.Tensor) -> torch.Tensor:
        mean, deviation = self._statistics(x, 1.0 / x.shape[2])
        context = torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], dim=1)
        attention = self._conv("asp.conv", torch.tanh(self._tdnn("asp.tdnn", context))).softmax(dim=2)
        return torch.cat(self._statistics(x, attention), dim=1)

    def __call__(self, audio: torch.Tensor) -> torch.Tensor:
        """float32 [samples] at `sizes.sample_rate`, `shortest` or more, to the x-vector float32 [dim]."""
        x = log_mel(audio.to(self._device), self.sizes.sample_rate, self.sizes.mels)[None]
        x = self._tdnn("blocks.0", x, self.sizes.dilations[0])
        layers = []
        for i in range(1, len(self.sizes.channels) - 1):
            x = self._se_res2net(f"blocks.{i}", x, self.sizes.dilations[i])
            layers.append(x)
        x = self._tdnn("mfa", torch.cat(layers, dim=1), self.sizes.dilations[-1])
        return self._conv("fc", self._attentive_pooling(x))[0, :, 0]

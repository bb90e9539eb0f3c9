"""Draws codes from logits with per-row parameters, inside a step: no multinomial, no shape that depends on
data.

Order and meaning of the filters are those of Hugging Face transformers' generation (repetition penalty,
temperature, top-k, top-p). The draw inverts the cumulative distribution at a uniform number that the caller
gives, so it depends on the row alone.
"""

from __future__ import annotations

import torch

from backends.talker import SamplingTable

MAX_TOP_K = 64


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Repetition penalty (Keskar et al. 2019): divide positive and multiply negative logits of ids seen
    before.

    logits: float [B, V]. seen: bool [B, V]. penalty: float32 [B], 1 is off.
    """
    penalty = penalty[:, None]
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def healthy(values: torch.Tensor) -> torch.Tensor:
    """Bool [B]: rows of float [B, ...] without NaN or infinity. A step flags the others as
    StepFlag.FAILED."""
    return torch.isfinite(values.flatten(1).sum(1))


class Sampler:
    """Parameters of a step's rows, prepared once and used for each of its draws.

    temperature: float32 [B], 0 is greedy; greedy and sampled rows may be mixed.
    top_k: int64 [B], 0 is off, values above `max_top_k` count as `max_top_k`. top_p: float32 [B], 1 is off.
    max_top_k: the most likely ids that top-k and top-p look at; a nucleus larger than that is cut there,
        because sorting the whole vocabulary costs ten times as much. With both filters off the whole
        vocabulary is drawn from.
    """

    def __init__(
        self, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, max_top_k: int = MAX_TOP_K
    ) -> None:
        self.max_top_k = max_top_k
        self._greedy = temperature <= 0
        self._scale = torch.where(self._greedy, 1.0, temperature).reciprocal()[:, None]
        self._has_top_k = (top_k > 0)[:, None]
        self._top_k = torch.where(top_k > 0, top_k, max_top_k).clamp(max=max_top_k)[:, None]
        self._top_p = top_p[:, None]
        self._open = ((top_k <= 0) & (top_p >= 1))[:, None]

    @classmethod
    def of(cls, table: SamplingTable, slots: torch.Tensor, max_top_k: int = MAX_TOP_K) -> Sampler:
        """The sampler for rows on `slots` [B]."""
        return cls(table.temperature[slots], table.top_k[slots], table.top_p[slots], max_top_k)

    def draw(self, logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """One id a row: int64 [B]. logits: float [B, V]; -inf forbids an id. uniform: float32 [B] in (0,
        1)."""
        vocabulary = logits.shape[-1]
        probability = (logits.float() * self._scale).softmax(-1)
        best, ids = probability.topk(min(self.max_top_k, vocabulary), dim=-1)
        mass = best.cumsum(-1)
        last = (self._top_k - 1).clamp(max=best.shape[-1] - 1)
        kept_mass = torch.where(self._has_top_k, mass.gather(1, last), 1.0)
        nucleus = ((mass - best) < self._top_p * kept_mass).sum(-1, keepdim=True) - 1
        lowest = best.gather(1, torch.minimum(last, nucleus).clamp(min=0))
        keep = (probability >= lowest) | self._open
        cumulative = torch.where(keep, probability, 0.0).cumsum(-1)
        drawn = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1).clamp(max=vocabulary - 1)
        return torch.where(self._greedy, ids[:, 0], drawn)

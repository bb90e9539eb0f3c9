"""Draws codes from logits, with as few operations as it takes.

The same filters as `backends.sampler.Sampler`, in half the operations: a step makes eight draws one
after the other, and on a CPU the cost of a draw over 512 codes is the number of operations, not their
size.
"""

from __future__ import annotations

import torch

from backends.talker import SamplingTable

MAX_TOP_K = 64
# Keeps the product of a sum of probabilities and a uniform number below that sum.
_BELOW_ONE = 1 - 1e-6


class CodeDraw:
    """The parameters of a step's rows, prepared once for all of its draws.

    temperature: float32 [B], 0 is greedy. top_k: int64 [B], 0 is off; values above MAX_TOP_K count as
    MAX_TOP_K. top_p: float32 [B], 1 is off; a nucleus of more than MAX_TOP_K codes is cut there.
    uniform: float32 [B, draws] in (0, 1). Greedy, filtered and unfiltered rows may be mixed.
    """

    def __init__(
        self, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
    ) -> None:
        greedy = temperature <= 0
        kept = torch.where(greedy, 1, torch.where(top_k > 0, top_k, MAX_TOP_K))
        self._last_kept = kept.clamp(max=MAX_TOP_K)[:, None] - 1
        ranks = torch.arange(MAX_TOP_K, device=top_k.device)
        self._scale = torch.where(greedy, 1.0, temperature).reciprocal()[:, None]
        self._ranks = torch.where(ranks < kept[:, None], 0.0, -torch.inf)
        self._top_p = top_p[:, None]
        unfiltered = (top_k <= 0) & (top_p >= 1) & ~greedy
        self._threshold_shift = torch.where(unfiltered, -torch.inf, 0.0)[:, None]
        self._uniform = uniform.t().contiguous().mul_(_BELOW_ONE).unsqueeze(2).unbind(0)

    @classmethod
    def of(cls, table: SamplingTable, slots: torch.Tensor, uniform: torch.Tensor) -> CodeDraw:
        """For rows on `slots` [B]."""
        return cls(
            table.temperature.index_select(0, slots),
            table.top_k.index_select(0, slots),
            table.top_p.index_select(0, slots),
            uniform,
        )

    def __call__(self, index: int, logits: torch.Tensor) -> torch.Tensor:
        """Draw number `index`: ids int64 [B, 1] from finite logits float32 [B, V], V at least
        MAX_TOP_K."""
        best = logits.topk(MAX_TOP_K, 1).values
        mass = torch.addcmul(self._ranks, best, self._scale).softmax(1).cumsum(1)
        # The last code that is kept is the first at which the sum reaches top_p, and never one beyond top_k: a
        # sum of float32 may stay just below 1.
        last = torch.searchsorted(mass, self._top_p).clamp_(max=self._last_kept)
        threshold = best.gather(1, last) + self._threshold_shift
        kept = logits.mul(self._scale).masked_fill_(logits < threshold, -torch.inf)
        cumulative = kept.softmax(1).cumsum(1)
        return torch.searchsorted(cumulative, cumulative[:, -1:] * self._uniform[index], right=True)

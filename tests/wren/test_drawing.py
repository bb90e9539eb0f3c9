"""Drawing codes: the distribution that temperature, top-k and top-p describe, by inverting its
cumulative sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.families.wren.drawing import MAX_TOP_K, CodeDraw

SIZE = 512
TRIALS = 4000


def filtered(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities as Hugging Face transformers' warpers define them, one filter after the other."""
    logits = logits.astype(np.float64) / temperature
    order = np.argsort(-logits, kind="stable")
    kept = order[: top_k or (MAX_TOP_K if top_p < 1 else SIZE)]
    probabilities = np.exp(logits[kept] - logits[kept].max())
    probabilities /= probabilities.sum()
    if top_p < 1:
        count = int((np.cumsum(probabilities) < top_p).sum()) + 1
        kept, probabilities = kept[:count], probabilities[:count] / probabilities[:count].sum()
    result = np.zeros(SIZE)
    result[kept] = probabilities
    return result


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> torch.Tensor:
    rows = len(uniform)
    code_draw = CodeDraw(
        torch.full((rows,), temperature),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p),
        uniform[:, None],
    )
    return code_draw(0, logits.expand(rows, -1).contiguous())[:, 0]


def test_top_k_holds_where_the_sum_of_probabilities_rounds_below_one() -> None:
    for seed in (0, 5):
        logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))
        codes = draw(logits, (torch.arange(TRIALS) + 0.5) / TRIALS, 1.0, 2, 1.0)
        assert set(codes.tolist()) == set(logits.topk(2).indices.tolist())


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    spread=st.floats(0.3, 8.0),
    temperature=st.floats(0.3, 2.0),
    top_k=st.sampled_from([0, 1, 2, 20, 64]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
)
def test_codes_come_as_often_as_they_should(
    seed: int, spread: float, temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * spread
    uniform = (torch.arange(TRIALS) + 0.5) / TRIALS  # evenly: frequencies are exact to one part in TRIALS
    codes = draw(logits, uniform, temperature, top_k, top_p)
    frequency = np.bincount(codes.numpy(), minlength=SIZE) / TRIALS
    expected = filtered(logits.numpy(), temperature, top_k, top_p)
    assert np.abs(frequency - expected).max() <= 2 / TRIALS
    assert (codes.diff() >= 0).all()


def test_temperature_zero_takes_the_likeliest_code() -> None:
    logits = torch.randn(16, SIZE, generator=torch.Generator().manual_seed(0))
    uniform = torch.linspace(0.001, 0.999, 16)
    zeros = torch.zeros(16)
    code_draw = CodeDraw(zeros, zeros.long(), zeros + 1, uniform[:, None])
    assert torch.equal(code_draw(0, logits)[:, 0], logits.argmax(1))


@pytest.mark.parametrize("value", [2.0**-24, 0.5, 1 - 2.0**-24])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (20, 1.0), (0, 0.9), (64, 0.999)])
def test_extreme_numbers_draw_codes_that_are_kept(value: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(5)) * 4
    code = draw(logits, torch.full((4,), value), 1.0, top_k, top_p)
    assert (torch.from_numpy(filtered(logits.numpy(), 1.0, top_k, top_p))[code] > 0).all()


def test_rows_with_different_parameters_do_not_mix() -> None:
    logits = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(2)) * 3
    uniform = torch.tensor([0.9, 0.2, 0.7, 0.4])
    temperature = torch.tensor([0.0, 1.0, 0.7, 1.3])
    top_k = torch.tensor([0, 0, 20, 5])
    top_p = torch.tensor([1.0, 1.0, 0.9, 1.0])
    together = CodeDraw(temperature, top_k, top_p, uniform[:, None])(0, logits)
    for row in range(4):
        one = slice(row, row + 1)
        alone = CodeDraw(temperature[one], top_k[one], top_p[one], uniform[one, None])(0, logits[one])
        assert torch.equal(alone, together[one])

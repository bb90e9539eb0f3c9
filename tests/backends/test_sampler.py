"""Sampling against the filters written out one row at a time, as Hugging Face transformers defines them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.noise import counter_noise, seed_key
from backends.sampler import Sampler, healthy, penalise


def kept(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities of one row after temperature, top-k and top-p."""
    scaled = logits.astype(np.float64) / temperature
    if top_k:
        scaled[scaled < np.sort(scaled)[-min(top_k, len(scaled))]] = -np.inf
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return p / p.sum()


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float, top_k: int, top_p: float, most: int = 64
) -> torch.Tensor:
    rows = len(logits)
    sampler = Sampler(
        torch.full((rows,), temperature), torch.full((rows,), top_k), torch.full((rows,), top_p), most
    )
    return sampler.draw(logits, uniform)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.6, 0, 1.0),
        (1.0, 5, 1.0),
        (1.0, 1, 1.0),
        (1.3, 0, 0.7),
        (0.9, 6, 0.6),
        (1.0, 50, 0.95),
    ],
)
def test_frequencies_follow_the_filtered_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=30).astype(np.float32) * 2)
    count = 4000
    uniform = torch.from_numpy(counter_noise(np.repeat(seed_key(4), count), np.arange(count), 1)[:, 0])
    drawn = draw(logits.expand(count, -1), uniform, temperature, top_k, top_p)
    expected = kept(logits.numpy(), temperature, top_k, top_p)
    counts = np.bincount(drawn.numpy(), minlength=30)
    assert (counts[expected == 0] == 0).all()
    deviation = np.sqrt(count * expected * (1 - expected)) + 1e-9
    assert (np.abs(counts - count * expected) <= 5 * deviation + 1).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1.0),
    temperature=st.floats(0.2, 2),
)
def test_a_drawn_id_is_one_that_the_filters_keep(
    seed: int, top_k: int, top_p: float, temperature: float
) -> None:
    chance = np.random.default_rng(seed)
    logits = torch.from_numpy(chance.normal(size=(3, 17)).astype(np.float32) * 3)
    uniform = torch.from_numpy(chance.uniform(1e-6, 1 - 1e-6, 3).astype(np.float32))
    drawn = draw(logits, uniform, temperature, top_k, top_p)
    for row, index in zip(logits.numpy(), drawn.tolist(), strict=True):
        # A nucleus may end a float's rounding earlier or later.
        assert kept(row, temperature, top_k, min(1.0, top_p + 1e-5))[index] > 0


def test_greedy_and_sampled_rows_in_one_batch_are_as_alone() -> None:
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
    uniform = torch.tensor([0.1, 0.5, 0.9, 0.7])
    parameters = [(0.0, 0, 1.0), (1.0, 3, 1.0), (0.0, 5, 0.5), (0.8, 0, 0.9)]
    temperature, top_k, top_p = (torch.tensor(x) for x in zip(*parameters, strict=True))
    together = Sampler(temperature, top_k, top_p).draw(logits, uniform)
    for i, (t, k, p) in enumerate(parameters):
        assert draw(logits[i : i + 1], uniform[i : i + 1], t, k, p) == together[i]
    assert together[0] == logits[0].argmax()
    assert together[2] == logits[2].argmax()


@pytest.mark.parametrize("uniform", [1e-7, 0.5, 1 - 2**-24])
def test_forbidden_ids_are_never_drawn(uniform: float) -> None:
    logits = torch.full((1, 8), -torch.inf)
    logits[0, 3] = 0.0
    for parameters in [(1.0, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.5), (0.0, 0, 1.0)]:
        assert draw(logits, torch.tensor([uniform]), *parameters).tolist() == [3]


def test_unfiltered_rows_draw_from_the_whole_vocabulary() -> None:
    logits = torch.zeros(1000, 300)
    uniform = (torch.arange(1000) + 0.5) / 1000
    assert len(draw(logits, uniform, 1.0, 0, 1.0, most=8).unique()) == 300
    # A filter looks at the 8 most likely ids only.
    steep = -torch.arange(300.0).expand(1000, -1) * 0.01
    assert draw(steep, uniform, 1.0, 20, 1.0, most=8).max() == 7
    assert draw(steep, uniform, 1.0, 0, 0.99, most=8).max() == 7


def test_repetition_penalty_moves_seen_ids_away_from_the_choice() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0], [2.0, -1.0, 3.0]])
    seen = torch.tensor([[True, True, False], [True, True, True]])
    out = penalise(logits, seen, torch.tensor([2.0, 1.0]))
    assert out.tolist() == [[1.0, -2.0, 3.0], [2.0, -1.0, 3.0]]


def test_healthy_finds_rows_with_numbers_that_are_not_finite() -> None:
    values = torch.zeros(4, 2, 3)
    values[1, 0, 2] = torch.nan
    values[3, 1, 1] = torch.inf
    assert healthy(values).tolist() == [True, False, True, False]

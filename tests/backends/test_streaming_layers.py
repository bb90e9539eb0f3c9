"""Streaming layers: any cut of the input gives the output of the whole, on any slot, in any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from backends.layers.backbone import BackboneConfig, StreamingTransformer
from backends.layers.conv import CausalConv1d, CausalTransposedConv1d
from backends.layers.convnext import CausalConvNeXt
from backends.layers.rope import RopeConfig
from backends.layers.snake import Snake, SnakeBeta, freeze
from backends.layers.state import SlotCall, StreamingModule, allocate, reset, slot_bytes

LENGTH = 23


class TimeFirst(nn.Module):
    """A transformer in the channels-first world of the convolutions."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.transformer = StreamingTransformer(config)

    def forward(self, x: torch.Tensor, call: SlotCall | None = None) -> torch.Tensor:
        return self.transformer(x.transpose(1, 2), call).transpose(1, 2)


def transformer(**changes: object) -> TimeFirst:
    sizes = {
        "hidden": 6, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 4, "intermediate": 10, "window": 5,
    }  # fmt: skip
    return TimeFirst(BackboneConfig(**{**sizes, **changes}))  # type: ignore[arg-type]


NETWORKS = {
    "conv": lambda: CausalConv1d(6, 6, 5),
    "dilated conv": lambda: CausalConv1d(6, 6, 3, dilation=4),
    "pointwise conv": lambda: CausalConv1d(6, 6, 1),
    "grouped conv": lambda: CausalConv1d(6, 6, 4, groups=3, bias=False),
    "transposed conv": lambda: CausalTransposedConv1d(6, 6, 6, 3),
    "transposed conv that overlaps far": lambda: CausalTransposedConv1d(6, 6, 7, 2),
    "transposed conv without overlap": lambda: CausalTransposedConv1d(6, 6, 2, 2),
    "grouped transposed conv": lambda: CausalTransposedConv1d(6, 6, 4, 2, groups=6, bias=False),
    "convnext": lambda: CausalConvNeXt(6, kernel=4),
    "transformer": transformer,
    "transformer with layer norm, gelu, scales": lambda: transformer(
        norm="layer", mlp="gelu", bias=True, layer_scale=True, rope=RopeConfig(interleaved=True)
    ),
    "transformer with window 1": lambda: transformer(window=1),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(sum(map(ord, name)))
    network = NETWORKS[name]().double()
    for parameter in network.parameters():
        nn.init.uniform_(parameter, -0.8, 0.8)
    allocate(network, 4)
    return network


def stream(network: nn.Module, x: torch.Tensor, slots: list[int], cuts: list[int]) -> torch.Tensor:
    """Run x [B, C, T] through the network in chunks of the sizes in `cuts`, repeated."""
    out, begin, i = [], 0, 0
    while begin < x.shape[2]:
        size = min(cuts[i % len(cuts)], x.shape[2] - begin)
        call = SlotCall(torch.tensor(slots))
        out.append(network(x[:, :, begin : begin + size], call))
        call.commit()
        begin, i = begin + size, i + 1
    return torch.cat(out, 2)


@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@torch.inference_mode()
def test_any_chunking_equals_the_whole(name: str, cuts: list[int]) -> None:
    network = make(name)
    x = torch.randn(2, 6, LENGTH, dtype=torch.float64)
    torch.testing.assert_close(stream(network, x, [3, 1], cuts), network(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
@torch.inference_mode()
def test_a_row_is_the_same_alone_and_among_others(name: str) -> None:
    network = make(name)
    x = torch.randn(3, 6, LENGTH, dtype=torch.float64)
    together = stream(network, x, [0, 3, 2], [4, 1])
    for row, slot in enumerate([2, 0, 1]):
        reset(network, torch.tensor([slot]))
        alone = stream(network, x[row : row + 1], [slot], [4, 1])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
@torch.inference_mode()
def test_a_reset_slot_is_like_a_fresh_one_even_after_a_stream_of_nan(name: str) -> None:
    network = make(name)
    x = torch.randn(1, 6, LENGTH, dtype=torch.float64)
    stream(network, torch.full_like(x, torch.nan), [2], [5])
    reset(network, torch.tensor([2]))
    torch.testing.assert_close(stream(network, x, [2], [5]), network(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
@torch.inference_mode()
def test_streams_that_start_apart_do_not_meet(name: str) -> None:
    network = make(name)
    x = torch.randn(2, 6, LENGTH, dtype=torch.float64)
    first = stream(network, x[:1, :, :7], [1], [7])
    both = stream(network, torch.cat([x[:1, :, 7:14], x[1:, :, :7]]), [1, 2], [3])
    whole = network(x)
    up = whole.shape[2] // LENGTH
    torch.testing.assert_close(torch.cat([first, both[:1]], 2), whole[:1, :, : 14 * up], rtol=0, atol=1e-12)
    torch.testing.assert_close(both[1:], whole[1:, :, : 7 * up], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
@torch.inference_mode()
def test_null_rows_and_a_call_without_commit_change_no_slot(name: str) -> None:
    network = make(name)
    x = torch.randn(1, 6, LENGTH, dtype=torch.float64)
    first = stream(network, x[:, :, :9], [1], [9])
    network(torch.randn(3, 6, 4, dtype=torch.float64), SlotCall(torch.tensor([0, 1, 2])))  # raised, say
    rest, begin = [], 9
    while begin < LENGTH:
        call = SlotCall(torch.tensor([1, 4, 4]))
        padded = torch.cat(
            [x[:, :, begin : begin + 5], torch.randn(2, 6, len(x[0, 0, begin : begin + 5])).double()]
        )
        rest.append(network(padded, call)[:1])
        call.commit()
        begin += 5
    torch.testing.assert_close(torch.cat([first, *rest], 2), network(x), rtol=0, atol=1e-12)


@torch.inference_mode()
def test_causal_convolution_is_torch_s_with_zeros_before_the_start() -> None:
    layer = CausalConv1d(3, 5, 4, dilation=2)
    x = torch.randn(2, 3, 17)
    expected = F.conv1d(F.pad(x, (6, 0)), layer.conv.weight, layer.conv.bias, dilation=2)
    torch.testing.assert_close(layer(x), expected)


@torch.inference_mode()
def test_causal_transposed_convolution_is_torch_s_without_its_tail() -> None:
    layer = CausalTransposedConv1d(3, 5, 6, 2)
    x = torch.randn(2, 3, 17)
    expected = F.conv_transpose1d(x, layer.conv.weight, layer.conv.bias, stride=2)
    assert expected.shape[2] == 17 * 2 + 4
    torch.testing.assert_close(layer(x), expected[:, :, :34])


def test_a_transposed_kernel_shorter_than_its_stride_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel is 2"):
        CausalTransposedConv1d(1, 1, 2, 3)


def test_a_streaming_transformer_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a window"):
        transformer(window=None)


def test_slot_bytes_counts_all_state_of_one_slot() -> None:
    network = nn.Sequential(CausalConv1d(3, 5, 4), CausalTransposedConv1d(5, 2, 6, 2))
    allocate(network, 7)
    assert slot_bytes(network) == 4 * (3 * 3 + 2 * 4)
    attention = transformer()
    allocate(attention, 7)
    assert slot_bytes(attention) == 4 * (2 * 2 * 5 * 1 * 4) + 8


def test_state_is_not_part_of_a_checkpoint() -> None:
    layer = CausalConv1d(3, 5, 4)
    allocate(layer, 2)
    assert set(layer.state_dict()) == {"conv.weight", "conv.bias"}
    assert isinstance(layer, StreamingModule)


@torch.inference_mode()
def test_snake_activations_follow_their_formulas() -> None:
    x = torch.linspace(-3, 3, 20).expand(1, 2, 20)
    snake = Snake(2)
    snake.alpha.copy_(torch.tensor([0.5, 2.0])[None, :, None])
    for channel, alpha in enumerate([0.5, 2.0]):
        torch.testing.assert_close(snake(x)[0, channel], x[0, 0] + torch.sin(alpha * x[0, 0]) ** 2 / alpha)
    beta = SnakeBeta(2)
    beta.alpha.copy_(torch.tensor([0.5, -0.3]))
    beta.beta.copy_(torch.tensor([-0.2, 0.7]))
    loose = beta(x)
    for channel in range(2):
        a, b = beta.alpha[channel].exp(), beta.beta[channel].exp()
        torch.testing.assert_close(loose[0, channel], x[0, 0] + torch.sin(a * x[0, 0]) ** 2 / b)
    torch.testing.assert_close(freeze(beta)(x), loose)

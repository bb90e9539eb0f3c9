"""Packed linear layers: the same numbers, and rows that do not depend on their neighbours."""

import pytest
import torch
from torch import nn

from backends.layers.packed import PackedLinear, can_pack, pack_linear


@pytest.fixture
def linear():
    torch.manual_seed(3)
    layer = nn.Linear(768, 512)
    if not can_pack(layer.weight):
        pytest.skip("this PyTorch has no oneDNN")
    return layer


@pytest.mark.parametrize("shape", [(1, 768), (8, 768), (3, 5, 768)])
def test_a_packed_layer_computes_the_same(linear, shape):
    x = torch.randn(shape)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-5, rtol=1e-5)


def test_a_row_does_not_depend_on_the_rows_beside_it(linear):
    packed, x = PackedLinear(linear), torch.randn(16, 768)
    together = packed(x)
    for rows in (1, 2, 3, 5, 8):
        assert torch.equal(packed(x[:rows]), together[:rows])


def test_only_large_float32_layers_are_packed(linear):
    network = nn.ModuleDict(
        {
            "large": linear,
            "small": nn.Linear(8, 8),
            "halved": nn.Linear(768, 512, dtype=torch.bfloat16),
            "deeper": nn.Sequential(nn.Linear(512, 512, bias=False)),
        }
    )
    assert pack_linear(network) == 2
    assert [type(layer) for layer in (network["large"], network["deeper"][0])] == [PackedLinear] * 2
    assert [type(network[name]) for name in ("small", "halved")] == [nn.Linear] * 2

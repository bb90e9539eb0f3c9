"""A row's matrix product is the same to the bit however many rows there are, from MINIMUM_ROWS on.

If this fails on a machine, its math library sums in an order that depends on the batch, and codes may
differ between a stream alone and in company: raise MINIMUM_ROWS there.
"""

from __future__ import annotations

import pytest
import torch

from backends.families.wren.codec import WrenCodec
from backends.families.wren.linear import MINIMUM_ROWS, steady_linear, transposed
from backends.families.wren.talker import WrenTalker

ROWS = (MINIMUM_ROWS, 5, 7, 8, 12, 16, 24, 32, 64, 120)


def weights(talker: WrenTalker, codec: WrenCodec) -> dict[str, torch.Tensor]:
    """Every shape of matrix that a step or a codec call multiplies with."""
    parts: dict[str, torch.nn.Module] = {
        "phone encoder": talker.phone_encoder,
        "alignment": talker.alignment,
        "regression": talker.depth.regression,
        "decoder": codec.decoder,
    }
    found = {
        f"{name}.{place}": module.weight
        for name, part in parts.items()
        for place, module in part.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    layer = talker.backbone.layers[0]
    return found | {
        "step input": talker.step_input.weight,
        "query key value": layer.query_key_value,
        "gate and up": layer.gate_and_up,
        "attention out": layer.attention_out.t(),
        "down": layer.down.t(),
        "common": talker.depth.common_weight,
        "logits": talker.depth.logit_weights[0],
        "rest": talker.depth.rest_weights[0].t(),
        "prefix sums": talker.durations.sums.t(),
        "harmonic bands": codec.synthesis.harmonic_bands,
        "noise bands": codec.synthesis.noise_bands,
    }


def test_products_do_not_depend_on_the_number_of_rows(talker: WrenTalker, codec: WrenCodec) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights(talker, codec).items():
        x = torch.randn(max(ROWS), weight.shape[1], generator=generator)
        whole = torch.nn.functional.linear(x, weight)
        for rows in ROWS:
            part = torch.nn.functional.linear(x[-rows:], weight)
            assert torch.equal(part, whole[-rows:]), f"{name} {list(weight.shape)} with {rows} rows"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_are_multiplied_as_more(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(9, 64, generator=generator), torch.randn(32, generator=generator)
    weight = transposed(torch.randn(32, 64, generator=generator))
    few = steady_linear(x[:rows].view(rows, 1, 64), weight, bias)
    assert torch.equal(few[:, 0], steady_linear(x, weight, bias)[:rows])

"""The bench of the engines: limits, decoding orders and the parity check itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.graphs import EagerCapture, Function, Tensors
from backends.layers.packed import PackedLinear, can_pack
from backends.voice import EngineConfig, VoiceConfig
from bench.deadlines import ORDERS, Load, Simulation
from bench.gpu.parity import Parity, codec_parity, talker_parity
from bench.matrix_limit import matrix_limit
from chunk_policies import ChunkSchedule
from tests.fakes.families import FAMILIES

CPU = torch.device("cpu")


def test_the_limit_counts_the_products_of_a_call_and_nothing_else() -> None:
    layer = torch.nn.Linear(32, 48)
    convolution = torch.nn.Conv1d(4, 6, 3)
    x, y = torch.randn(5, 32), torch.randn(2, 4, 10)
    seconds, operations = matrix_limit(lambda: (torch.tanh(layer(x)), convolution(y)), CPU, repeats=3)
    assert seconds > 0
    assert operations == 2 * 5 * 32 * 48 + 2 * 2 * 6 * 8 * 4 * 3


def test_the_limit_takes_expanded_and_transposed_operands() -> None:
    x = torch.randn(3, 4)
    _, operations = matrix_limit(lambda: x.t() @ x.new_ones(3, 1).expand(3, 5), CPU, repeats=1)
    assert operations == 2 * 4 * 3 * 5


def test_the_limit_counts_products_with_packed_weights() -> None:
    layer = torch.nn.Linear(512, 512)
    if not can_pack(layer.weight):
        pytest.skip("this PyTorch has no oneDNN, so nothing is packed")
    packed = PackedLinear(layer)
    seconds, operations = matrix_limit(lambda: packed(torch.randn(2, 3, 512)), CPU, repeats=3)
    assert seconds > 0
    assert operations == 2 * 6 * 512 * 512


def test_in_simulated_time_the_deadline_order_is_first_earlier_than_arrival_and_later_never_much() -> None:
    """A codec that is nearly busy all the time, as in the load of bench.deadlines, but shorter."""
    load = Load(step=0.020, decode=0.025, streams=32, codec_batch=4, finished=80)
    figures = {order: Simulation(load, order).run() for order in ORDERS}
    wait = {order: float(np.median(f.waits)) for order, f in figures.items()}
    worst = {order: max(f.late, default=0.0) for order, f in figures.items()}
    assert wait["deadline"] < wait["arrival"]
    assert worst["deadline"] < worst["first chunks first"]
    assert all(len(f.waits) >= 80 for f in figures.values())


def test_a_simulation_is_the_same_each_time() -> None:
    load = Load(step=0.02, decode=0.02, streams=4, codec_batch=2, finished=6)
    first, second = (Simulation(load, "deadline", seed=3).run() for _ in range(2))
    assert (first.waits, first.late, first.chunks) == (second.waits, second.late, second.chunks)


@pytest.fixture
def voice() -> VoiceConfig:
    engine = EngineConfig(
        max_slots=4, codec_slots=4, max_length=64, length_buckets=(16, 64),
        talker_batch_buckets=(1, 4), codec_batch_buckets=(1, 4),
    )  # fmt: skip
    stream = ChunkSchedule.from_mapping({"codec_chunk_ramp": [2, 4], "codec_chunk_frames": 4})
    return VoiceConfig("fake", "fake", Path(), Path(), stream=stream, engine=engine)


@pytest.mark.parametrize("name", ["qwen", "pocket", "orpheus-snac", "omni"])
def test_parity_of_equal_paths_is_exact(name: str, voice: VoiceConfig) -> None:
    talker = talker_parity(FAMILIES[name].talker(), voice, EagerCapture())
    codec = codec_parity(FAMILIES[name].codec(), voice, EagerCapture())
    for parity in (talker, codec):
        assert parity.problems == []
        assert parity.worst == 0
    assert talker.keys == 4


class Stale(EagerCapture):
    """A back end with a fault that graphs can have: a replay gives what capture gave."""

    def capture(self, function: Function, inputs: Tensors) -> Callable[[], Tensors]:
        outputs = function(*inputs)
        return lambda: outputs


def test_parity_finds_a_replay_that_does_not_read_its_inputs(voice: VoiceConfig) -> None:
    parity = codec_parity(FAMILIES["qwen"].codec(), voice, Stale())
    assert parity.problems
    assert "differs from the eager call" in parity.problems[0]


def test_parity_names_every_count_that_is_off() -> None:
    parity = Parity(
        keys=4, worst=0.0, worst_key=(1, 1), captures_warmup=3, captures_runtime=0, fallbacks=1, misses=2
    )
    assert parity.problems == [
        "3 of 4 keys were captured",
        "fallbacks is 1; it must be 0",
        "misses is 2; it must be 0",
    ]

"""The graph runner: what is captured when, what is counted, and how strict the strict back end is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from backends.graphs import CaptureBackend, EagerCapture, GraphRunner, batch_buckets, capture_for
from tests.fakes.driving import no_progress
from tests.fakes.strict import NotCapturable, StrictCapture


def runner(
    capture: CaptureBackend, keys: list[tuple[int, int]], bind: Callable[[tuple[int, int]], Any] | None = None
) -> GraphRunner[tuple[int, int]]:
    """Doubles an array [rows, size]."""
    return GraphRunner(
        name="test",
        bind=bind or (lambda key: lambda x: (x * 2,)),
        specs=lambda key: [(key, torch.float32)],
        fill_idle=lambda arrays: arrays[0].fill(0),
        keys=keys,
        size=lambda key: key[0] * key[1],
        capture=capture,
    )


def call(graphs: GraphRunner[tuple[int, int]], key: tuple[int, int], value: float) -> np.ndarray:
    graphs.inputs(key).arrays[0][:] = value
    return graphs.run(key)[0]


@pytest.mark.parametrize("capture", [EagerCapture, StrictCapture])
def test_captured_keys_are_replayed_and_others_run_eagerly_and_are_counted(capture: Any) -> None:
    graphs = runner(capture(), [(1, 4), (2, 4)])
    graphs.warm_up(no_progress)
    assert (call(graphs, (2, 4), 3.0) == 6).all()
    assert (call(graphs, (1, 4), 4.0) == 8).all()
    assert (call(graphs, (1, 5), 5.0) == 10).all()
    counters = graphs.counters
    assert (counters.captures_warmup, counters.captures_runtime) == (2, 0)
    assert (counters.replays, counters.misses, counters.fallbacks) == (2, 1, 0)


def test_the_largest_key_is_captured_first_and_progress_is_told(caplog: pytest.LogCaptureFixture) -> None:
    bound: list[tuple[int, int]] = []

    def bind(key: tuple[int, int]) -> Any:
        bound.append(key)
        return lambda x: (x,)

    seen: list[tuple[int, int]] = []
    with caplog.at_level("INFO", "backends.graphs"):
        runner(EagerCapture(), [(1, 2), (4, 8), (4, 2), (4, 2)], bind).warm_up(lambda *p: seen.append(p))
    assert bound == [(4, 8), (4, 2), (1, 2)]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [r.getMessage() for r in caplog.records] == [
        "test graph 1/3 (4, 8)",
        "test graph 2/3 (4, 2)",
        "test graph 3/3 (1, 2)",
    ]


def test_a_key_that_cannot_be_captured_stays_eager_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def bind(key: tuple[int, int]) -> Any:
        # Reads a value on the host when it has two rows.
        return lambda x: (x * (2 + float(x[0, 0].item()) * 0 if key[0] == 2 else 2),)

    graphs = runner(StrictCapture(), [(1, 2), (2, 2)], bind)
    graphs.warm_up(no_progress)
    assert [r.getMessage() for r in caplog.records] == [
        "test graph (2, 2) cannot be captured and stays eager"
    ]
    assert (call(graphs, (2, 2), 3.0) == 6).all()
    assert (graphs.counters.captures_warmup, graphs.counters.fallbacks, graphs.counters.misses) == (1, 1, 0)


def test_results_outlive_the_next_replay() -> None:
    graphs = runner(StrictCapture(), [(1, 2), (2, 2)])
    graphs.warm_up(no_progress)
    first = call(graphs, (1, 2), 1.0)
    call(graphs, (2, 2), 5.0)
    assert (first == 2).all()


def test_a_second_warm_up_would_count_as_capturing_at_run_time() -> None:
    graphs = runner(EagerCapture(), [(1, 2)])
    graphs.warm_up(no_progress)
    graphs.warm_up(no_progress)
    assert (graphs.counters.captures_warmup, graphs.counters.captures_runtime) == (1, 1)
    strict = runner(StrictCapture(), [(1, 2)])
    strict.warm_up(no_progress)
    strict.warm_up(no_progress)
    assert strict.counters.fallbacks == 1


def test_a_function_may_be_compiled() -> None:
    graphs = runner(EagerCapture(compile="eager"), [(2, 4)])
    graphs.warm_up(no_progress)
    assert (call(graphs, (2, 4), 3.0) == 6).all()
    assert (graphs.counters.captures_warmup, graphs.counters.fallbacks) == (1, 0)


def test_the_device_chooses_the_back_end() -> None:
    assert isinstance(capture_for(torch.device("cpu")), EagerCapture)


def test_batch_buckets_end_at_the_first_that_holds_all_slots() -> None:
    assert batch_buckets((1, 2, 4, 8, 16), 5) == (1, 2, 4, 8)
    assert batch_buckets((1, 2, 4, 8, 16), 8) == (1, 2, 4, 8)
    assert batch_buckets((1, 2, 4), 9) == (1, 2, 4)
    assert batch_buckets((4, 8), 1) == (4,)


# The strict back end.

STATE = torch.arange(12.0).view(3, 4)


def set_where(i: torch.Tensor) -> tuple[torch.Tensor]:
    state = STATE.clone()
    state[i > 0] = 1
    return (state,)


@pytest.mark.parametrize(
    "function",
    [
        lambda i: (STATE * float(i[0].item()),),
        lambda i: (STATE * i.tolist()[0],),
        lambda i: (STATE * float(i.numpy()[0]),),
        lambda i: (STATE.cpu()[i],),
        lambda i: (STATE * 2,) if (i > 0).any() else (STATE,),
        lambda i: (STATE[i > 0],),
        lambda i: (torch.where(i)[0],),
        lambda i: (STATE.repeat_interleave(i, 0),),
        lambda i: (torch.unique(i),),
        lambda i: (STATE + torch.tensor([1.0, 2.0, 3.0, 4.0]),),
        set_where,
    ],
    ids=[
        "item", "tolist", "numpy", "cpu", "if", "mask", "where", "repeat", "unique", "torch.tensor", "mask set",
    ],
)  # fmt: skip
def test_what_a_cuda_graph_cannot_hold_is_refused(function: Any) -> None:
    with pytest.raises(NotCapturable), torch.inference_mode():
        StrictCapture().capture(function, (torch.tensor([1, 0, 2]),))


def test_what_python_decided_at_capture_stays_decided() -> None:
    choice = [2.0]
    state = torch.zeros(3, 2)

    def function(i: torch.Tensor) -> tuple[torch.Tensor]:
        rows = state.index_select(0, i) + choice[0]
        state.index_copy_(0, i, rows)
        return (rows,)

    i = torch.tensor([2])
    replay = StrictCapture().capture(function, (i,))
    choice[0] = 100.0
    i[0] = 1
    assert replay()[0].tolist() == [[2.0, 2.0]]
    assert replay()[0].tolist() == [[4.0, 4.0]]
    assert state.tolist() == [[0, 0], [4, 4], [2, 2]]

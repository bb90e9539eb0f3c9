"""The machine's limit for a model call: the time that its matrix products and convolutions take alone.

A call is recorded once; then only its products are run, on random tensors of the same shapes (packed weights,
which are opaque, are used themselves). What a call takes beyond that is everything else: attention's softmax,
activations, gathers and scatters, and the cost of launching them all.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

PACKED = "_linear_pointwise"  # see backends/layers/packed.py
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", PACKED)


class _Products(TorchDispatchMode):
    """Collects products by operation, shapes and other arguments; a packed weight stands for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[Any, tuple[Any, ...]]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket.__name__ in PRODUCTS:
            self.found[func, tuple(_fact(a) for a in args)] += 1
        return func(*args, **(kwargs or {}))


def _fact(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and not argument.is_mkldnn:
        return (tuple(argument.shape), argument.stride(), argument.dtype)
    return ("value", tuple(argument) if isinstance(argument, list) else argument)


def _packed_operations(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * weight[0]


def _argument(fact: Any, device: torch.device) -> Any:
    if fact[0] == "value":
        return list(fact[1]) if isinstance(fact[1], tuple) else fact[1]
    shape, stride, dtype = fact
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.randn(max(reach, 1), dtype=dtype, device=device).as_strided(shape, stride)


def matrix_limit(
    call: Callable[[], object],
    device: torch.device,
    repeats: int = 20,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Seconds that the products of `call` take alone (median), and its floating-point operations."""
    packed = getattr(torch.ops.mkldnn, PACKED, None)  # not in every PyTorch
    formulas = {packed: _packed_operations} if packed is not None else {}
    recorder, flops = _Products(), FlopCounterMode(display=False, custom_mapping=formulas)
    with torch.inference_mode():
        with recorder, flops:
            call()
        work = [
            (func, [_argument(fact, device) for fact in facts], count)
            for (func, facts), count in recorder.found.items()
        ]

        def products() -> None:
            for func, arguments, count in work:
                for _ in range(count):
                    func(*arguments)

        return median_seconds(products, device, repeats, clock), float(flops.get_total_flops())


def median_seconds(
    call: Callable[[], object],
    device: torch.device,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Median time of `call`, its work on the device included."""
    times = []
    for i in range(repeats + 2):
        begin = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= 2:
            times.append(clock() - begin)
    return statistics.median(times)

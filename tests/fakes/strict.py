"""A capture back end for the CPU that is as strict as CUDA graphs.

Capture records every tensor operation that the function runs; a replay runs the recorded operations on the
same static buffers, so whatever Python decided during capture stays decided, as in a CUDA graph. A function
that reads tensor values on the host, or whose shapes depend on data, cannot be captured. Outputs are static
buffers too, and every replay destroys what earlier ones left in them. After warm-up nothing may be
captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from backends.graphs import CaptureBackend, Function, Tensors

HOST_READS = frozenset(
    {
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "equal",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "bincount",
        "repeat_interleave",
        "lift_fresh",  # torch.tensor(...): a copy from the host
    }
)


class NotCapturable(RuntimeError):  # noqa: N818
    """The function does what a CUDA graph cannot hold."""


class _NoHostReads(TorchFunctionMode):
    """Refuses methods that hand tensor values to Python."""

    METHODS = frozenset({torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu})

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in self.METHODS:
            raise NotCapturable(f"Tensor.{func.__name__} reads on the host")
        return func(*args, **(kwargs or {}))


class _Result:
    """Stands in a recorded operation for the output of an earlier one."""

    def __init__(self, place: int) -> None:
        self.place = place


class _Recorder(TorchDispatchMode):
    """Runs operations and records them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any]] = []
        self._results: dict[int, _Result] = {}
        self._alive: list[torch.Tensor] = []  # an id is only unique while its tensor lives

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in HOST_READS or (name == "where" and len(args) == 1):
            raise NotCapturable(f"aten.{name} needs the host or has a shape that depends on data")
        if name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            raise NotCapturable(f"aten.{name} with a mask has a shape that depends on data")
        recorded = (func, self.reference(args), {k: self.reference(v) for k, v in kwargs.items()})
        out = func(*args, **kwargs)
        outputs = out if isinstance(out, tuple | list) else (out,)
        self.operations.append(recorded)
        for tensor in outputs:
            # An operation in place gives back its argument, which keeps the name that it has.
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._results:
                self._results[id(tensor)] = _Result(len(self._alive))
            self._alive.append(tensor)
        return out

    def reference(self, tree: Any) -> Any:
        """The arguments with a _Result for each tensor that this recording has made."""
        if isinstance(tree, torch.Tensor):
            return self._results.get(id(tree), tree)
        if type(tree) in (list, tuple):
            return [self.reference(item) for item in tree]
        return tree


def _resolve(tree: Any, made: list[Any]) -> Any:
    """The arguments with the tensors that this replay has made."""
    if type(tree) is _Result:
        return made[tree.place]
    if type(tree) in (list, tuple):
        return [_resolve(item, made) for item in tree]
    return tree


def _replay(operations: list[tuple[Any, Any, Any]], outputs: list[Any]) -> Sequence[torch.Tensor]:
    made: list[Any] = []
    for func, args, kwargs in operations:
        out = func(*[_resolve(a, made) for a in args], **{k: _resolve(v, made) for k, v in kwargs.items()})
        made.extend(out if isinstance(out, tuple | list) else (out,))
    return [_resolve(output, made) for output in outputs]


class StrictCapture(CaptureBackend):
    """captured: functions captured so far."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.captured = 0
        self._sealed = False
        self._outputs: list[torch.Tensor] = []

    def seal(self) -> None:
        self._sealed = True

    def capture(self, function: Function, inputs: Tensors) -> Callable[[], Tensors]:
        if self._sealed:
            raise NotCapturable("captured after warm-up")
        recorder = _Recorder()
        with _NoHostReads(), recorder:
            outputs = function(*inputs)
        recorded = recorder.reference(tuple(outputs))
        operations = recorder.operations
        static = tuple(t.clone() for t in outputs)
        self._outputs.extend(static)
        self.captured += 1

        def replay() -> Tensors:
            for tensor in self._outputs:
                tensor.fill_(-1)
            fresh = _replay(operations, recorded)
            for target, source in zip(static, fresh, strict=True):
                target.copy_(source)
            return static

        return replay

    def fetch(self, outputs: Tensors) -> list[np.ndarray]:
        return [t.numpy().copy() for t in outputs]

"""Runs a model call for a fixed set of shapes, from static buffers, captured once before the model reports
ready.

A `GraphRunner` owns one static set of input buffers a key, such as (rows, frames) or (rows, cache length). A
`CaptureBackend` turns a function of such buffers into a replay: `CudaCapture` into a CUDA graph,
`EagerCapture` into a plain call. Nothing is captured after warm-up; a shape that was not warmed runs
eagerly and is counted.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]
BufferSpec = tuple[tuple[int, ...], torch.dtype]


@dataclass
class GraphCounters:
    """What a runner did. captures_runtime and misses stay 0 in a server that was warmed for its schedule.

    captures_warmup, captures_runtime: captures before and after the end of warm-up. replays: calls of
        captured keys.
    misses: calls of keys that were not warmed, run eagerly. fallbacks: keys whose capture failed, run
        eagerly.
    """

    captures_warmup: int = 0
    captures_runtime: int = 0
    replays: int = 0
    misses: int = 0
    fallbacks: int = 0


class StaticInputs:
    """Input buffers of one key. Write into `arrays`, then `upload`; the function reads `tensors`.

    On a CPU both are the same memory. For CUDA the arrays are pinned, so that the upload does not wait;
    they may be written again once the outputs of the call have been fetched.
    """

    def __init__(self, specs: Sequence[BufferSpec], device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._host = [torch.zeros(shape, dtype=dtype, pin_memory=on_gpu) for shape, dtype in specs]
        self.arrays = [t.numpy() for t in self._host]
        self.tensors: Tensors = tuple(t.to(device) for t in self._host) if on_gpu else tuple(self._host)
        self._on_gpu = on_gpu

    def upload(self) -> None:
        if self._on_gpu:
            for source, target in zip(self._host, self.tensors, strict=True):
                target.copy_(source, non_blocking=True)


class CaptureBackend(ABC):
    """How a function over static buffers is made repeatable."""

    device: torch.device

    @abstractmethod
    def capture(self, function: Function, inputs: Tensors) -> Callable[[], Tensors]:
        """Make a replay of `function(*inputs)` that reads the same buffers each time it is called.

        The function runs during capture, so the inputs must be harmless (rows on the null slot).
        The returned tensors may be overwritten by the next replay of any key.
        """

    def seal(self) -> None:  # noqa: B027 - most back ends have nothing to do
        """Called when warm-up is over: nothing should be captured from now on."""

    def fetch(self, outputs: Tensors) -> list[np.ndarray]:
        """Bring outputs to the host; the arrays stay valid. The only wait of a step."""
        return [t.numpy() for t in outputs]


class EagerCapture(CaptureBackend):
    """Capture for devices without graphs: runs the function once to check it, then calls it.

    compile: back end of torch.compile that it is put through first, one program a key; "" is none.
    """

    def __init__(self, device: torch.device | str = "cpu", compile: str = "") -> None:
        self.device = torch.device(device)
        self._compile = compile

    def capture(self, function: Function, inputs: Tensors) -> Callable[[], Tensors]:
        function = _compiled(function, self._compile)
        function(*inputs)
        return lambda: function(*inputs)


class CudaCapture(CaptureBackend):
    """CUDA graphs that share one memory pool.

    The pool makes intermediates of all graphs overlap, which is safe because replays follow each other on
    one stream and outputs are fetched before the next replay. Outputs are kept referenced, so that no later
    capture reuses them.
    """

    WARM_UP_CALLS = 2  # lazy initialisation (cuBLAS handles and workspaces) must not happen inside a capture

    def __init__(self, device: torch.device | str = "cuda", compile: str = "") -> None:
        self.device = torch.device(device)
        self._compile = compile
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self.device)

    def capture(self, function: Function, inputs: Tensors) -> Callable[[], Tensors]:
        function = _compiled(function, self._compile)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for _ in range(self.WARM_UP_CALLS):
                function(*inputs)
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = function(*inputs)

        def replay() -> Tensors:
            graph.replay()
            return outputs

        return replay

    def fetch(self, outputs: Tensors) -> list[np.ndarray]:
        host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in outputs]
        for target, source in zip(host, outputs, strict=True):
            target.copy_(source, non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()
        return [t.numpy() for t in host]


def _compiled(function: Function, backend: str) -> Function:
    """The function put through torch.compile; inductor must not bring CUDA graphs of its own."""
    if not backend:
        return function
    mode = "max-autotune-no-cudagraphs" if backend == "inductor" else None
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend, mode=mode)


def capture_for(device: torch.device, compile: str = "") -> CaptureBackend:
    """The capture back end of a device. compile: back end of torch.compile ("inductor"), "" is off."""
    return CudaCapture(device, compile) if device.type == "cuda" else EagerCapture(device, compile)


class GraphRunner(Generic[Key]):
    """Calls one function for a fixed set of keys.

    name: for log lines ("codec graph 12/35"). bind: makes the function of a key, called with its tensors.
    specs: shapes and dtypes of the input buffers of a key. fill_idle: writes inputs under which a call is
        harmless.
    keys: what to warm. size: how much work a key is; larger keys are captured first, so that the pool fits
        all.
    counters: where to count, for an engine that counts more.
    """

    def __init__(
        self,
        *,
        name: str,
        bind: Callable[[Key], Function],
        specs: Callable[[Key], Sequence[BufferSpec]],
        fill_idle: Callable[[list[np.ndarray]], None],
        keys: Sequence[Key],
        size: Callable[[Key], int],
        capture: CaptureBackend,
        counters: GraphCounters | None = None,
    ) -> None:
        self.name = name
        self.keys = tuple(sorted(set(keys), key=size, reverse=True))
        self.counters = counters if counters is not None else GraphCounters()
        self._bind = bind
        self._specs = specs
        self._fill_idle = fill_idle
        self._capture = capture
        self._inputs: dict[Key, StaticInputs] = {}
        self._replays: dict[Key, Callable[[], Tensors]] = {}
        self._warm = False
        self.last_key: Key | None = None  # of the last `run`

    def warm_up(self, progress: Callable[[int, int], None]) -> None:
        """Capture every key; `progress(done, total)` is called after each. A key that fails stays eager."""
        for done, key in enumerate(self.keys, start=1):
            self._capture_key(key)
            log.info("%s graph %d/%d %s", self.name, done, len(self.keys), key)
            progress(done, len(self.keys))
        self._warm = True
        self._capture.seal()

    def _capture_key(self, key: Key) -> None:
        inputs = self._inputs[key] = self._new_inputs(key)
        function = self._bind(key)
        try:
            self._replays[key] = self._capture.capture(function, inputs.tensors)
        except Exception:
            log.warning("%s graph %s cannot be captured and stays eager", self.name, key, exc_info=True)
            self.counters.fallbacks += 1
            self._replays[key] = lambda: function(*inputs.tensors)
            return
        if self._warm:
            self.counters.captures_runtime += 1
        else:
            self.counters.captures_warmup += 1

    def _new_inputs(self, key: Key) -> StaticInputs:
        inputs = StaticInputs(self._specs(key), self._capture.device)
        self._fill_idle(inputs.arrays)
        inputs.upload()
        return inputs

    def eager(self, key: Key) -> Function:
        """The function of a key as it was bound, to be called with its tensors."""
        return self._bind(key)

    def make_idle(self, key: Key) -> None:
        """Fill the buffers of a key so that its calls are harmless."""
        self._fill_idle(self.inputs(key).arrays)

    def inputs(self, key: Key) -> StaticInputs:
        """The buffers to fill before `run(key)`; what an earlier call wrote is still in them."""
        found = self._inputs.get(key)
        if found is None:  # not warmed: buffers are kept, the call stays eager
            found = self._inputs[key] = self._new_inputs(key)
        return found

    def run(self, key: Key) -> list[np.ndarray]:
        """Call the function of `key` on what `inputs(key)` holds and bring its outputs to the host."""
        self.last_key = key
        inputs = self._inputs[key]
        inputs.upload()
        replay = self._replays.get(key)
        if replay is None:
            self.counters.misses += 1
            return self._capture.fetch(self._bind(key)(*inputs.tensors))
        self.counters.replays += 1
        return self._capture.fetch(replay())


def batch_buckets(sizes: Sequence[int], slots: int) -> tuple[int, ...]:
    """The batch sizes of use among `sizes` (ascending): up to the first that holds all slots."""
    return tuple(b for i, b in enumerate(sizes) if i == 0 or sizes[i - 1] < slots)

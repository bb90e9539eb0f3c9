"""The only module that talks to Triton's Python backend; it imports only inside a model's stub process."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from backends.serving.window import Window

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def _error(text: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))


class _Responder:
    def __init__(self, sender: Any) -> None:
        self._sender = sender

    def error(self, text: str) -> None:
        self._sender.send(_error(text), flags=FINAL)

    def final(self) -> None:
        self._sender.send(flags=FINAL)


class TalkerResponder(_Responder):
    """Answers one request at model `talker`.

    A send returns when the server has taken the response, which costs the loop up to a millisecond. Openings leave
    in the thread of `openings`, so that the stream's first step need not wait; what follows an opening waits for it.
    """

    def __init__(self, sender: Any, openings: Executor) -> None:
        super().__init__(sender)
        self._openings = openings
        self._opening: Future[None] | None = None

    def window(self, window: Window, last: bool) -> None:
        if window.opening:
            self._opening = self._openings.submit(self._send, window, last)
            return
        self._opened()
        self._send(window, last)

    def error(self, text: str) -> None:
        self._opened()
        super().error(text)

    def final(self) -> None:
        self._opened()
        super().final()

    def _opened(self) -> None:
        if self._opening is not None:
            self._opening.result()
            self._opening = None

    def _send(self, window: Window, last: bool) -> None:
        frames, meta = window.pack()
        response = pb_utils.InferenceResponse(
            [pb_utils.Tensor("frames", frames[None]), pb_utils.Tensor("meta", meta[None])]
        )
        self._sender.send(response, flags=FINAL if last else 0)

    def status(self, status: Mapping[str, Any]) -> None:
        tensor = pb_utils.Tensor("status", np.array([[json.dumps(status).encode()]], np.object_))
        self._sender.send(pb_utils.InferenceResponse([tensor]), flags=FINAL)


class CodecResponder(_Responder):
    """Answers one window's request at model `codec`."""

    def audio(self, waveform: np.ndarray, info: str, last: bool) -> None:
        response = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("waveform", waveform[None]),
                pb_utils.Tensor("chunk_info", np.array([[info.encode()]], np.object_)),
            ]
        )
        self._sender.send(response, flags=FINAL if last else 0)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def read_inputs(request: Any) -> dict[str, np.ndarray]:
    """All input tensors of a request that are there, by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def read_parameters(request: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    return parameters


class StubLog:
    """Log lines to standard error, one format for both models."""

    def __init__(self, name: str, level: str) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        self._logger = logging.getLogger(f"tritone.{name}")
        self._logger.handlers[:] = [handler]
        self._logger.setLevel(level.upper())

    def info(self, message: str) -> None:
        self._logger.info(message)

    def warning(self, message: str) -> None:
        self._logger.warning(message)

    def error(self, message: str) -> None:
        self._logger.error(message)


class StubMetrics:
    """Publishes counters and gauges as `tritone_<model>_<name>` on Triton's metrics endpoint."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._metrics: dict[str, tuple[Any, bool]] = {}
        self._families: list[Any] = []
        self._last: dict[str, float] = {}

    def publish(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name not in self._metrics:
                self._metrics[name] = self._create(name)
            metric, counter = self._metrics[name]
            if counter:
                if value > self._last.get(name, 0.0):
                    metric.increment(value - self._last.get(name, 0.0))
            elif value != self._last.get(name):
                metric.set(value)
            self._last[name] = value

    def _create(self, name: str) -> tuple[Any, bool]:
        counter = name.endswith("_total")
        family = pb_utils.MetricFamily(
            name=f"tritone_{self._model}_{name}",
            description=f"{name.replace('_', ' ')} of the {self._model}",
            kind=pb_utils.MetricFamily.COUNTER if counter else pb_utils.MetricFamily.GAUGE,
        )
        self._families.append(family)
        return family.Metric(labels={}), counter


def start_loop(name: str, run: Callable[[], None], log: StubLog) -> threading.Thread:
    """Run a service's loop in a thread. A loop that dies takes the process with it: a stub whose loop is gone
    would look healthy and hang every client, a dead one is seen at once by its lock."""

    def guarded() -> None:
        try:
            run()
        except BaseException:
            logging.getLogger(f"tritone.{name}").exception("the %s loop died", name)
            log.error("ending the process")
            os._exit(1)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def on_sigterm(callback: Callable[[], None]) -> None:
    """Call back, in a thread, when the process gets SIGTERM (sent to the server's whole process group).

    The interpreter runs signal handlers between bytecodes of the main thread, which in a stub is inside C++ code;
    only the wake-up descriptor is written at once.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(write_end)

    def wait() -> None:
        os.read(read_end, 1)
        callback()

    threading.Thread(target=wait, name="sigterm", daemon=True).start()

"""The talker's way back to Triton: the opening leaves in a thread of its own, and nothing overtakes it."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from backends.serving.window import Window


class Sender:
    """Holds the first response back until it is released, and keeps the order of all."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.sent: list[Any] = []

    def send(self, response: Any = None, flags: int = 0) -> None:
        if not self.sent:
            assert self.release.wait(5)
        self.sent.append((response, flags))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """backends.serving.triton over a Python backend that exists only inside Triton's processes."""
    fake = types.SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        InferenceResponse=lambda tensors=(), error=None: error or [t[1] for t in tensors],
        TritonError=lambda text: text,
        Tensor=lambda name, value: (name, value),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    monkeypatch.delitem(sys.modules, "backends.serving.triton", raising=False)
    yield importlib.import_module("backends.serving.triton")
    del sys.modules["backends.serving.triton"]


def window(index: int) -> Window:
    frames = np.zeros((0 if index < 0 else 2, 1), np.int32)
    return Window(0, 1, index, frames, finish_reason=None)


@pytest.mark.parametrize(
    "follow",
    [
        lambda r: r.window(window(0), last=False),
        lambda r: r.error("broken"),
        lambda r: r.final(),
    ],
    ids=["window", "error", "final"],
)
def test_the_loop_does_not_wait_for_the_opening_but_what_follows_does(module, follow):
    sender = Sender()
    with ThreadPoolExecutor(1) as openings:
        responder = module.TalkerResponder(sender, openings)
        responder.window(window(-1), last=False)  # returns, though the server has not taken it
        assert not sender.sent
        follower = threading.Thread(target=follow, args=(responder,))
        follower.start()
        follower.join(0.1)
        assert follower.is_alive()
        sender.release.set()
        follower.join(5)
    (opening, flags), _ = sender.sent  # both, the opening first
    assert flags == 0 and opening[0].size == 0


def test_an_opening_that_fails_is_told_to_the_loop(module):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the server is gone")

    with ThreadPoolExecutor(1) as openings:
        responder = module.TalkerResponder(types.SimpleNamespace(send=fail), openings)
        responder.window(window(-1), last=False)
        with pytest.raises(RuntimeError, match="the server is gone"):
            responder.final()

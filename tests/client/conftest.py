from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether `condition` comes true in time; for what happens on another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True

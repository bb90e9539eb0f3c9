"""Starting real servers for tests: own ports, own runtime directory, nothing left behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from launcher.background import ensure_running, stop
from launcher.instance import Instance
from launcher.settings import Settings


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@contextmanager
def running_server(runtime: Path, **settings: object) -> Iterator[Settings]:
    """A supervised tritonserver with our model repository, ready to speak; ended afterwards."""
    grpc_port, http_port, metrics_port = free_ports(3)
    chosen = Settings(
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        **settings,  # type: ignore[arg-type]
    )
    before = os.environ.get("TRITONE_RUNTIME_DIR")
    os.environ["TRITONE_RUNTIME_DIR"] = str(runtime)
    try:
        ensure_running(chosen, None, lambda message: None)
        try:
            yield chosen
        finally:
            stop(Instance(grpc_port), lambda message: None)
    finally:
        if before is None:
            del os.environ["TRITONE_RUNTIME_DIR"]
        else:
            os.environ["TRITONE_RUNTIME_DIR"] = before

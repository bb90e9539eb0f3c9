"""The life of one server in this process: checks, lock, clean-up after a crashed predecessor, supervision."""

from __future__ import annotations

from pathlib import Path

from launcher import leftovers
from launcher.errors import LauncherError
from launcher.instance import Instance, new_state
from launcher.logs import supervisor_logger
from launcher.ports import check_free
from launcher.server import check_files, resolve_device
from launcher.settings import Settings
from launcher.supervisor import Supervisor


def serve(settings: Settings, log_file: Path | None) -> int:
    """Run the server until a signal; the exit status.

    Raises LauncherError if it cannot be started: a port, a file or the device is not to be had, or one of
    ours runs.
    """
    check_files(settings)
    resolve_device(settings.device)
    instance = Instance(settings.grpc_port)
    with instance.hold() as ours:
        if not ours:
            raise LauncherError(
                f"a server of this folder already listens on gRPC port {settings.grpc_port}; "
                "'./tritone stop' ends it"
            )
        logger = supervisor_logger(settings.log_level, log_file)
        predecessor = instance.state()
        if predecessor is not None:
            killed, removed = leftovers.clean(predecessor.identity)
            if killed or removed:
                logger.warning(
                    "a killed server left %d processes and %d files; removed", len(killed), len(removed)
                )
        check_free(settings)
        return Supervisor(settings, instance, new_state(settings), logger).run()

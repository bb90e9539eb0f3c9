"""Noticing that a port is taken, and by whom, before the server stumbles over it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import LauncherError
from launcher.instance import all_instances
from launcher.settings import Settings, option_name

_LISTEN = "0A"


class PortsBusyError(LauncherError):
    """Ports that the server needs are taken; the message names them and who holds them."""


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen there. Connections of a past server that are still timing out do not
    count.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def listening_inodes(port: int, proc: Path = Path("/proc")) -> set[str]:
    """Inode numbers of the sockets that listen on a port, as the kernel's tables have them."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        path = proc / "net" / table
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(columns[9])
    return inodes


def holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """Process that listens on a port, for people: "python3 (process 4711)". None where it cannot be known."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port, proc)}
    if not wanted:
        return None
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:
            continue  # gone meanwhile, or not ours to look into
    return None


def our_servers() -> Mapping[int, str]:
    """Ports of Tritone servers of this folder that run, with a name for people."""
    ports = {}
    for instance in all_instances():
        settings = instance.settings() if instance.running() else None
        if settings is not None:
            for port in settings.ports().values():
                ports[port] = f"the Tritone server of gRPC port {instance.grpc_port} (voice {settings.voice})"
    return ports


def check_free(settings: Settings) -> None:
    """Raises PortsBusyError if one of the three ports cannot be had."""
    busy = {name: port for name, port in settings.ports().items() if not is_free(settings.bind, port)}
    if not busy:
        return
    ours = our_servers()
    lines = [
        f"{option_name(name)} {port} is taken by {ours.get(port) or holder(port) or 'another process'}"
        for name, port in busy.items()
    ]
    if set(busy.values()) & set(ours):
        way_out = "'./tritone stop' ends ours"
    else:
        way_out = "choose others, e.g. " + " ".join(
            f"{option_name(name)} {port + 1000}" for name, port in settings.ports().items()
        )
    raise PortsBusyError("; ".join(lines) + f". Way out: {way_out}.")

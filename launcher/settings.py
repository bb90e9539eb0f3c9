"""Settings of one running server: from options, the environment or defaults, checked once, then trusted."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from launcher.errors import LauncherError

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ("auto", "cpu", "cuda")
LOG_LEVELS = ("error", "warning", "info", "debug")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SettingsError(LauncherError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """What `serve` is told.

    grpc_port, http_port, metrics_port: TCP ports, all different. bind: address of all three. voice: name of a
    file voices/NAME.yaml, or a path to such a file. device: auto takes CUDA where torch and a GPU allow it.
    threads: CPU threads of each model process (0: half of the cores). drain_seconds: how long open streams
    may go on after SIGTERM. probe_seconds: how often the supervisor has a word spoken while nothing else is
    (0: never). aliases: further names under which the ensemble `tts` is offered. model_repository: directory
    of talker, codec and tts.
    """

    grpc_port: int = 8001
    http_port: int = 8000
    metrics_port: int = 8002
    bind: str = "127.0.0.1"
    voice: str = "wren"
    device: str = "auto"
    log_level: str = "info"
    threads: int = 0
    drain_seconds: float = 20.0
    probe_seconds: float = 15.0
    aliases: tuple[str, ...] = ()
    model_repository: str = str(ROOT / "model_repository")

    def __post_init__(self) -> None:
        ports = self.ports()
        for name, port in ports.items():
            if not 0 < port < 65536:
                raise SettingsError(f"{option_name(name)} {port}: a port is a number from 1 to 65535.")
        if len(set(ports.values())) < len(ports):
            raise SettingsError(
                "--grpc-port, --http-port and --metrics-port must differ; given: "
                + ", ".join(str(port) for port in ports.values())
            )
        for name, value, allowed in (
            ("device", self.device, DEVICES),
            ("log_level", self.log_level, LOG_LEVELS),
        ):
            if value not in allowed:
                raise SettingsError(f"{option_name(name)} {value}: choose one of {', '.join(allowed)}.")
        for name in ("threads", "drain_seconds", "probe_seconds"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{option_name(name)} {getattr(self, name)}: must not be negative.")
        for alias in self.aliases:
            if not NAME.fullmatch(alias) or alias in ("talker", "codec", "tts"):
                raise SettingsError(
                    f"--alias {alias}: letters, digits, '_', '.', '-', and none of talker, codec, tts."
                )
        if not self.voice:
            raise SettingsError(
                "--voice is empty: give the name of a file in voices/, or a path to a YAML file."
            )

    def ports(self) -> dict[str, int]:
        """The three ports by field name."""
        return {name: getattr(self, name) for name in ("grpc_port", "http_port", "metrics_port")}

    @property
    def host(self) -> str:
        """Address at which this machine itself reaches the server."""
        return "127.0.0.1" if self.bind in ("0.0.0.0", "::") else self.bind

    @property
    def grpc_url(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    def to_arguments(self) -> list[str]:
        """Options that make the same settings again."""
        arguments = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "aliases":
                arguments += [f"--alias={alias}" for alias in value]
            else:
                arguments.append(f"{option_name(field.name)}={value}")
        return arguments

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Settings that some version of this class wrote; what this one does not know is left out."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in json.loads(text).items() if name in known}
        return cls(**{**values, "aliases": tuple(values["aliases"])})


def is_voice_path(voice: str) -> bool:
    """Whether a voice is given as a path to a YAML file rather than by name."""
    return Path(voice).suffix in (".yaml", ".yml")


def option_name(field: str) -> str:
    return "--" + field.replace("_", "-")


def variable_name(field: str) -> str:
    """Environment variable that stands for an option, e.g. TRITONE_GRPC_PORT."""
    return "TRITONE_" + field.upper()


def add_options(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Add the options of `Settings` (all or those named) to a parser; what is not given stays absent."""
    help_texts = {
        "grpc_port": "port of the streaming API (8001)",
        "http_port": "port of Triton's HTTP API (8000)",
        "metrics_port": "port of the Prometheus metrics (8002)",
        "bind": "address to listen at; 0.0.0.0 opens the server to the network (127.0.0.1)",
        "voice": "a voice in voices/, or a path to a voice's YAML file (wren)",
        "device": "cpu, cuda or auto (auto: CUDA where PyTorch and a GPU allow it)",
        "log_level": "error, warning, info or debug (info)",
        "threads": "CPU threads of each of the two model processes (0: half of the cores)",
        "drain_seconds": "after SIGTERM, how long open streams may go on (20)",
        "probe_seconds": "how often an idle server is checked by having it speak a word; 0 is never (15)",
        "model_repository": "directory of the models talker, codec and tts",
    }
    group = parser.add_argument_group("server", "each option can also be set as TRITONE_<OPTION>")
    for field in fields(Settings):
        if names is not None and field.name not in names:
            continue
        if field.name == "aliases":
            group.add_argument(
                "--alias",
                action="append",
                dest="aliases",
                default=argparse.SUPPRESS,
                metavar="NAME",
                help="offer the ensemble under a further name too, e.g. cosyvoice2 for NVIDIA's own client",
            )
            continue
        kind = type(field.default)
        group.add_argument(
            option_name(field.name),
            type=kind,
            default=argparse.SUPPRESS,
            metavar="N" if kind in (int, float) else field.name.rpartition("_")[2].upper(),
            help=help_texts[field.name],
        )


def resolve(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from parsed options, then the environment, then defaults.

    Raises SettingsError for a value that is out of range or not of the right type.
    """
    values: dict[str, object] = {}
    for field in fields(Settings):
        if hasattr(options, field.name):
            values[field.name] = getattr(options, field.name)
            continue
        name = "TRITONE_ALIAS" if field.name == "aliases" else variable_name(field.name)
        text = environment.get(name, "")
        if not text:
            continue
        if field.name == "aliases":
            values[field.name] = tuple(part.strip() for part in text.split(",") if part.strip())
            continue
        kind: type = type(field.default)
        try:
            values[field.name] = kind(text)
        except ValueError:
            raise SettingsError(f"{name}={text}: must be a number.") from None
    # A server in the background runs in another directory.
    for name, is_path in (("voice", is_voice_path), ("model_repository", bool)):
        if name in values and is_path(str(values[name])):
            values[name] = str(Path(str(values[name])).absolute())
    if "aliases" in values:
        values["aliases"] = tuple(values["aliases"])  # type: ignore[arg-type]
    return Settings(**values)  # type: ignore[arg-type]

"""The commands of ./tritone."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from client.cli import add_say_arguments
from client.cli import run_say as client_say
from launcher import checks
from launcher.background import describe, ensure_running, stop
from launcher.errors import LauncherError
from launcher.instance import Instance, all_instances
from launcher.probe import ProbeError, Server
from launcher.serve import serve
from launcher.server import find_installation, is_voice, resolve_device
from launcher.settings import ROOT, add_options, option_name, resolve


def say_progress(message: str) -> None:
    print(f"tritone: {message}", file=sys.stderr, flush=True)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./tritone",
        description="Streaming text-to-speech on NVIDIA Triton Inference Server.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, more: str = "", passes: bool = False) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {more}",
            allow_abbrev=False,
            add_help=not passes,
            conflict_handler="resolve",  # --voice of `say`: of the server or of the request, see run_say
        )

    say = command(
        "say",
        "speak a text",
        "Starts a server in the background if none of ours listens on the gRPC port, then speaks.",
    )
    add_say_arguments(say)
    say.add_argument(
        "--url", metavar="HOST:PORT", help="speak through the server there; none of ours is started"
    )
    add_options(say)

    serve = command(
        "serve",
        "run the server in the foreground",
        "Ends on Ctrl-C or SIGTERM once open streams have ended; a second Ctrl-C cuts them off.",
    )
    serve.add_argument(
        "--log-file", type=Path, help="write the log there (rotated at 5 MB) instead of to the terminal"
    )
    add_options(serve)

    stop = command("stop", "end the background server", "Open streams may end first.")
    stop.add_argument("--all", action="store_true", help="every server of this folder, whatever its port")
    add_options(stop, ("grpc_port",))

    status = command("status", "tell which servers of this folder run", "Exit status 3 if none does.")
    add_options(status, ())

    health = command(
        "health",
        "have a running server speak one word",
        "Exit status 0 if audio comes back or the server is full, else 1. For health checks of containers.",
    )
    health.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="at most that long (10)"
    )
    add_options(health, ("grpc_port", "bind"))

    test = command(
        "test",
        "run every check and test",
        "ruff, mypy, then pytest. With arguments, only pytest with them: './tritone test tests/client -x'.",
    )
    test.add_argument("arguments", nargs="*", metavar="PYTEST_ARGUMENT")

    command("bench", "load generator and measurements", passes=True)
    command("make-random", "write a small random checkpoint of a model family", passes=True)

    install = command(
        "install", "install and tell what is installed", "The script ./tritone itself does the installing."
    )
    install.add_argument(
        "--torch", metavar="BUILD", help="auto, cpu, cuda or a requirement (torch==2.13.0+cu130)"
    )
    install.add_argument("--fresh", action="store_true", help="from an empty virtual environment")
    return parser


def become(module: str, arguments: Sequence[str]) -> int:
    """Replace this process by `python -m MODULE ARGUMENTS`."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def run_say(options: argparse.Namespace) -> int:
    # A name that is no voice of ours may be a speaker within the server's voice: the server will tell.
    speaker = None
    if hasattr(options, "voice") and not is_voice(options.voice):
        speaker = options.voice
        del options.voice
    if options.url is None:
        settings = resolve(options)
        asked = settings.voice if hasattr(options, "voice") or os.environ.get("TRITONE_VOICE") else None
        ensure_running(settings, asked, say_progress)
        options.url = settings.grpc_url
    options.voice = speaker
    return client_say(options)


def run_serve(options: argparse.Namespace) -> int:
    return serve(resolve(options), options.log_file)


def run_stop(options: argparse.Namespace) -> int:
    chosen = all_instances() if options.all else [Instance(resolve(options).grpc_port)]
    stopped = [instance.grpc_port for instance in chosen if stop(instance, say_progress)]
    others = [instance.grpc_port for instance in all_instances() if instance.running()]
    if stopped:
        say_progress(f"stopped: {', '.join(map(str, stopped))}")
    elif others:
        ports = ", ".join(map(str, others))
        say_progress(
            f"no server on that port; running on {ports} ({option_name('grpc_port')} or --all stops them)"
        )
    else:
        say_progress("no server runs")
    return 0


def run_status() -> int:
    lines = [line for line in map(describe, all_instances()) if line is not None]
    print("\n".join(lines) or "no server runs")
    return 0 if lines else 3


def run_health(options: argparse.Namespace) -> int:
    settings = resolve(options)
    try:
        with Server(settings.grpc_url) as server:
            seconds = server.speak(options.timeout)
    except ProbeError as error:
        print(f"unhealthy: {error}")
        return 1
    print(f"healthy: first audio after {1000 * seconds:.0f} ms")
    return 0


def run_install() -> int:
    print(f"Python {sys.version.split()[0]} ({sys.executable})")
    print(f"PyTorch {importlib.metadata.version('torch')}, device {resolve_device('auto')}")
    print(f"tritonserver {find_installation().binary}")
    print(f"Tritone {importlib.metadata.version('tritone')} in {ROOT}")
    return 0


def run(arguments: list[str]) -> int:
    parser = build_parser()
    if arguments[:1] == ["bench"]:
        return become("bench", arguments[1:])
    if arguments[:1] == ["make-random"]:
        return become("backends.make_random", arguments[1:])
    if arguments[:1] == ["test"] and not {"-h", "--help"} & set(arguments):
        return checks.run(arguments[1:], say_progress)  # pytest's options are not ours to parse
    options = parser.parse_args(arguments)
    handlers = {
        "say": lambda: run_say(options),
        "serve": lambda: run_serve(options),
        "stop": lambda: run_stop(options),
        "status": run_status,
        "health": lambda: run_health(options),
        "install": run_install,
    }
    return handlers[options.command]()


def main() -> int:
    try:
        return run(sys.argv[1:])
    except LauncherError as error:
        say_progress(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

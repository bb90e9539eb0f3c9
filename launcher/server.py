"""The tritonserver process: which binary, which command line, which environment.

Two installations are known: the real server inside the wheel `nvidia-pytriton`, and NVIDIA's container image.
The wheel brings a Python stub for each Python version but needs help to find them and the interpreter's
shared library.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import ipaddress
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError
from launcher.settings import ROOT, Settings, is_voice_path

MODELS = ("talker", "codec")
ENSEMBLE = "tts"
EXIT_TIMEOUT_SECONDS = 5  # the server's own patience, once the streams are drained
# The image's own layout.
IMAGE_BINARY = Path("/opt/tritonserver/bin/tritonserver")
IMAGE_BACKENDS = Path("/opt/tritonserver/backends")
SHARED_MEMORY = Path("/dev/shm")
GPU_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))  # Linux; Windows' Linux subsystem
# Debian packages of the system libraries that the wheel's binaries need.
PACKAGES = {"libz.so.1": "zlib1g", "libstdc++.so.6": "libstdc++6", "libgcc_s.so.1": "libgcc-s1"}
# A client process that is stopped, or a host that is gone, answers no HTTP/2 ping: its streams end after the
# sum of both. A client that reads slowly answers pings and is not concerned.
KEEPALIVE_SECONDS = 20.0
KEEPALIVE_TIMEOUT_SECONDS = 10.0
# What may load code, map memory or write files on this machine, and speech does not need.
RESTRICTED = ("model-repository", "shared-memory", "logging", "trace")
KEY_HEADER = "tritone-key"


class ServerError(LauncherError):
    """The server cannot be started; the message tells the way out."""


@dataclass(frozen=True)
class Installation:
    """Where the server's parts are.

    binary: tritonserver. backends: directory that holds `python/`. stub: the Python stub to link into a
    backend directory of our own, None where `backends` has the right one. libraries: directories for
    LD_LIBRARY_PATH. libpython: shared library of the interpreter that the stub needs, None where it is found
    without help.
    """

    binary: Path
    backends: Path
    stub: Path | None
    libraries: tuple[Path, ...]
    libpython: Path | None


def find_installation() -> Installation:
    """The server of the wheel, else that of the container image. Raises ServerError if there is none."""
    spec = importlib.util.find_spec("pytriton")
    if spec is not None and spec.submodule_search_locations:
        return _wheel(Path(spec.submodule_search_locations[0]))
    if IMAGE_BINARY.exists():
        return Installation(IMAGE_BINARY, IMAGE_BACKENDS, None, (), None)
    raise ServerError(
        "no tritonserver: neither the wheel nvidia-pytriton nor /opt/tritonserver is there. "
        "Run './tritone install'."
    )


def _wheel(package: Path) -> Installation:
    server = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise ServerError(
            f"nvidia-pytriton has no stub for Python {version} ({stub}). Use Python 3.10 to 3.13."
        )
    return Installation(
        binary=server / "bin" / "tritonserver",
        backends=server / "backends",
        stub=stub,
        libraries=(package.parent / "nvidia_pytriton.libs",),
        libpython=find_libpython(),
    )


def find_libpython() -> Path:
    """Shared library of the running Python version. Raises ServerError naming the package that has it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    directory = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    places = (
        directory,
        directory / str(sysconfig.get_config_var("MULTIARCH") or ""),
        Path(sys.base_prefix) / "lib",
        *map(
            Path,
            (
                "/usr/lib/x86_64-linux-gnu",
                "/lib/x86_64-linux-gnu",
                "/usr/lib64",
                "/usr/local/lib",
                "/usr/lib",
            ),
        ),
    )
    for place in places:
        if (place / name).exists():
            return place / name
    raise ServerError(
        f"{name} is missing, into which the server loads Python. Install it: "
        f"'apt-get install libpython{version}' (Debian) or 'dnf install python{version}-libs' (Fedora, RHEL)."
    )


def missing_libraries(installation: Installation) -> list[str]:
    """System libraries that the server's binaries need and this machine does not have."""
    libpython = [installation.libpython.parent] if installation.libpython is not None else []
    search = os.pathsep.join(map(str, [*installation.libraries, *libpython]))
    binaries = [installation.binary, installation.backends / "python" / "libtriton_python.so"]
    if installation.stub is not None:
        binaries.append(installation.stub)
    listed = subprocess.run(
        ["ldd", *map(str, binaries)],
        env={**os.environ, "LD_LIBRARY_PATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    ).stdout
    return sorted({line.split()[0] for line in listed.splitlines() if line.endswith("=> not found")})


def check_libraries(installation: Installation) -> None:
    """Raises ServerError naming the packages that hold the missing libraries."""
    missing = missing_libraries(installation)
    if missing:
        packages = sorted({PACKAGES[name] for name in missing if name in PACKAGES})
        hint = f" Install them: 'apt-get install {' '.join(packages)}' (Debian, Ubuntu)." if packages else ""
        raise ServerError(
            f"tritonserver needs system libraries that are missing: {', '.join(missing)}.{hint}"
        )


def link_backends(installation: Installation, directory: Path) -> tuple[Path, tuple[Path, ...]]:
    """Make the backend directory that the server is given, of links into the installation.

    Returns it and the directories for LD_LIBRARY_PATH. Only the interpreter's own library is linked, not its
    whole directory: a Conda prefix, say, holds others that the server must not load.
    """
    if installation.stub is None:
        return installation.backends, installation.libraries
    python = directory / "python"
    libraries = directory / "lib"
    shutil.rmtree(directory, ignore_errors=True)  # an earlier Python version's links
    for folder in (python, libraries):
        folder.mkdir(parents=True)
    source = installation.backends / "python"
    for part in (*source.glob("*.so"), *source.glob("*.py"), installation.stub):
        (python / part.name).symlink_to(part)
    if installation.libpython is not None:
        (libraries / installation.libpython.name).symlink_to(installation.libpython)
    return directory, (*installation.libraries, libraries)


def write_alias(settings: Settings, alias: str, repository: Path) -> None:
    """Put a copy of the ensemble under another name into a model repository of its own."""
    source = Path(settings.model_repository) / ENSEMBLE / "config.pbtxt"
    text, count = re.subn(
        rf'^(\s*name\s*:\s*)"{ENSEMBLE}"', rf'\1"{alias}"', source.read_text(), count=1, flags=re.MULTILINE
    )
    if count != 1:
        raise ServerError(f'{source} has no line name: "{ENSEMBLE}", so it cannot be offered as {alias}.')
    (repository / alias / "1").mkdir(parents=True, exist_ok=True)
    (repository / alias / "config.pbtxt").write_text(text)


def command_line(
    settings: Settings, installation: Installation, identity: str, backends: Path, aliases: Path
) -> list[str]:
    """The server's command. Loading the ensemble loads the models it is made of.

    Explicit mode lets the supervisor unload and load a model whose process died. aliases: repository of
    `write_alias`.
    """
    command = [
        str(installation.binary),
        f"--model-repository={settings.model_repository}",
        "--model-control-mode=explicit",
        f"--load-model={ENSEMBLE}",
        "--disable-auto-complete-config",  # else every model is imported twice
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name=tritone-{identity}_",
        f"--exit-timeout-secs={EXIT_TIMEOUT_SECONDS}",
    ]
    if settings.aliases:
        command.append(f"--model-repository={aliases}")
        command += [f"--load-model={alias}" for alias in settings.aliases]
    command += [
        f"--grpc-keepalive-time={round(1000 * KEEPALIVE_SECONDS)}",
        f"--grpc-keepalive-timeout={round(1000 * KEEPALIVE_TIMEOUT_SECONDS)}",
        "--grpc-keepalive-permit-without-calls=1",
        "--grpc-http2-max-pings-without-data=0",  # a stopped client takes no data either
    ]
    for service in ("grpc", "http", "metrics"):
        command.append(f"--{service}-port={getattr(settings, service + '_port')}")
        command.append(f"--{service}-address={settings.bind}")
    command += {
        "error": ["--log-info=false", "--log-warning=false"],
        "warning": ["--log-info=false"],
        "info": [],
        "debug": ["--log-verbose=1"],
    }[settings.log_level]
    return command


def restrictions(key: str, bind: str) -> list[str]:
    """Options that open the administrative part of the API only to who knows the key.

    So does inference over HTTP where other hosts can reach it: Triton 2.51 reads the body by recursion and with
    alloca, so JSON of 50,000 nested brackets, or 800,000 chunks of a byte (CVE-2025-23310), ends the server.
    """
    http = RESTRICTED if is_loopback(bind) else (*RESTRICTED, "inference")
    return [
        f"--grpc-restricted-protocol={','.join(RESTRICTED)}:{KEY_HEADER}={key}",
        f"--http-restricted-api={','.join(http)}:{KEY_HEADER}={key}",
    ]


def is_loopback(bind: str) -> bool:
    """Whether only this host reaches that address."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def key_metadata(key: str) -> tuple[tuple[str, str], ...]:
    """gRPC metadata by which a caller shows that it knows the key."""
    return ((f"triton-grpc-protocol-{KEY_HEADER}", key),)


def resolve_device(device: str) -> str:
    """cpu or cuda. Raises ServerError where CUDA is asked for and the installed torch or the machine has
    none.
    """
    try:
        build = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ServerError("PyTorch is not installed. Run './tritone install'.") from None
    gpu = any(path.exists() for path in GPU_SIGNS)
    has_cuda = not build.endswith("+cpu")
    if device == "auto":
        return "cuda" if gpu and has_cuda else "cpu"
    if device == "cuda" and not has_cuda:
        raise ServerError(
            f"--device cuda: PyTorch {build} is a CPU build. './tritone install --torch cuda' gets another."
        )
    if device == "cuda" and not gpu:
        raise ServerError("--device cuda: no NVIDIA driver on this machine. Use --device cpu.")
    return device


def thread_count(settings: Settings) -> int:
    """CPU threads of each model process: both work at once, so half of the cores each."""
    return settings.threads or max(1, len(os.sched_getaffinity(0)) // 2)


def environment(
    settings: Settings,
    identity: str,
    libraries: Sequence[Path],
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Environment of the server, which its model processes inherit: the one channel that reaches them all.

    The stub takes the first `python3` on PATH for its prefix, so ours comes first. PYTHONPATH goes: the stubs
    differ in whether they heed it.
    """
    bin_directory = Path(sys.executable).parent
    threads = str(thread_count(settings))
    result = {name: value for name, value in base.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    result["PATH"] = f"{bin_directory}{os.pathsep}{base.get('PATH', os.defpath)}"
    result["LD_LIBRARY_PATH"] = os.pathsep.join(
        [*map(str, libraries), *filter(None, [base.get("LD_LIBRARY_PATH", "")])]
    )
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        result.setdefault(name, threads)
    result |= {
        "PYTHONUNBUFFERED": "1",
        "TRITONE_INSTANCE": identity,
        "TRITONE_VOICE": settings.voice,
        "TRITONE_DEVICE": resolve_device(settings.device),
        "TRITONE_LEDGER": str(ledger_path(identity)),
        "TRITONE_LOG_LEVEL": settings.log_level,
        "TRITONE_HTTP_PORT": str(settings.http_port),
    }
    return result


def ledger_path(identity: str) -> Path:
    return SHARED_MEMORY / f"tritone-{identity}.ledger"


def check_files(settings: Settings) -> None:
    """Notice what would make the server fail only seconds later. Raises ServerError."""
    repository = Path(settings.model_repository)
    for model in (*MODELS, ENSEMBLE):
        if not (repository / model / "config.pbtxt").is_file():
            raise ServerError(f"--model-repository {repository}: {model}/config.pbtxt is missing.")
    if is_voice(settings.voice):
        return
    if is_voice_path(settings.voice):
        raise ServerError(f"--voice {settings.voice}: there is no such file.")
    raise ServerError(
        f"--voice {settings.voice}: no such voice in {voices_folder()}; there are "
        f"{', '.join(voice_names()) or 'none'}. A path to a .yaml file works too."
    )


def voices_folder() -> Path:
    return Path(os.environ.get("TRITONE_VOICES") or ROOT / "voices")


def voice_names() -> list[str]:
    return sorted(path.stem for path in voices_folder().glob("*.yaml"))


def is_voice(voice: str) -> bool:
    """Whether it is a voice by name, or the path of an existing YAML file."""
    return voice in voice_names() or (is_voice_path(voice) and Path(voice).is_file())

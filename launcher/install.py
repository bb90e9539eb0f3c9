"""Installs Tritone into the virtual environment it runs in: `python -m launcher.install WANT STAMP`.

Called by the `tritone` script. Uses the standard library only, since nothing else is there yet. PyTorch comes
first, because it is the one package that can be had in several builds: a machine without a GPU must get the
CPU build, and nobody gets gigabytes of CUDA libraries unasked.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TORCH_VERSION = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index of CPU builds
SERVER_IMAGE_BINARY = Path("/opt/tritonserver/bin/tritonserver")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
PIP_NEEDED = (22, 2)  # the first with --dry-run --report
BEAT_SECONDS = 20.0

Pip = Callable[..., "subprocess.CompletedProcess[str]"]


class InstallError(Exception):
    """The installation cannot go on; the message tells the way out. see_log: only pip knows the reason."""

    def __init__(self, message: str, see_log: bool = False) -> None:
        super().__init__(message)
        self.see_log = see_log


def step(message: str) -> None:
    print(f"tritone: {message}", file=sys.stderr, flush=True)


class LoggedPip:
    """Runs pip with its output in a log file, and a sign of life on the terminal while it works."""

    def __init__(self, log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def __call__(self, *arguments: str, quick: bool = False) -> subprocess.CompletedProcess[str]:
        """Run `pip ARGUMENTS`. quick: give up soon where the network does not answer.

        Returns exit status and output; never raises on failure.
        """
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
        if quick:
            command += ["--retries", "1", "--timeout", "10"]
        started = time.monotonic()
        with self.log.open("a") as log:
            print("$", *command, file=log, flush=True)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            while True:
                try:
                    output, _ = process.communicate(timeout=BEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    step(f"  still installing, {time.monotonic() - started:.0f} s")
            if "--report" not in arguments:
                log.write(output)
        return subprocess.CompletedProcess(command, process.returncode, output, "")

    def tail(self, lines: int = 15) -> str:
        return "\n".join("  " + line for line in self.log.read_text(errors="replace").splitlines()[-lines:])


def installed(package: str) -> str | None:
    """Installed version of a package, or None. Looks afresh, as pip runs in another process."""
    importlib.invalidate_caches()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_cpu_build(metadata: dict[str, Any]) -> bool:
    """Whether a torch wheel with this metadata (as in pip's report) works without CUDA libraries."""
    local = metadata.get("version", "").partition("+")[2]
    if local:
        return bool(local == "cpu")
    return not any(
        re.match(r"(nvidia|cuda)[-_]", requirement, re.IGNORECASE)
        for requirement in metadata.get("requires_dist", [])
    )


def offered_torch(pip: Pip) -> dict[str, Any] | None:
    """Metadata of the plain torch that the user's own package index offers, without installing it."""
    done = pip(
        "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-",
        f"torch=={TORCH_VERSION}",
    )  # fmt: skip
    if done.returncode:
        return None
    metadata: dict[str, Any] = json.loads(done.stdout)["install"][0]["metadata"]
    return metadata


def install_cpu_torch(pip: Pip) -> str:
    """Install the CPU build of torch, from wherever it can be had; returns where that was.

    Raises InstallError where only a CUDA build is on offer.
    """
    pinned = f"torch=={TORCH_VERSION}+cpu"
    if pip("install", "--quiet", pinned).returncode == 0:
        return "your package index"
    if pip("install", "--quiet", "--no-deps", "--index-url", CPU_INDEX, pinned, quick=True).returncode == 0:
        if pip("install", "--quiet", pinned).returncode:
            raise InstallError(f"what {pinned} needs could not be installed.", see_log=True)
        return CPU_INDEX
    offer = offered_torch(pip)
    if offer is not None and is_cpu_build(offer):
        if pip("install", "--quiet", f"torch=={TORCH_VERSION}").returncode:
            raise InstallError(f"torch {TORCH_VERSION} could not be installed.", see_log=True)
        return "your package index"
    version = ".".join(map(str, sys.version_info[:2]))
    what = "offers only the CUDA build (several GB)" if offer is not None else "does not have it"
    raise InstallError(
        f"no CPU build of torch {TORCH_VERSION} for Python {version}: your package index {what} and "
        f"{CPU_INDEX} could not be used. Ways out: './tritone install --torch cuda' takes the CUDA build; "
        "TRITONE_PYTHON=python3.11 tries another Python; pip's extra-index-url may name an index that has it."
    )


def installed_torch() -> dict[str, Any] | None:
    """Metadata of the torch that is installed, as pip's report would give it, or None."""
    version = installed("torch")
    if version is None:
        return None
    return {"version": version, "requires_dist": importlib.metadata.requires("torch") or []}


def install_torch(pip: Pip, choice: str) -> None:
    """Bring torch to `choice`.

    auto: keep what is there, else the CPU build. cpu: the CPU build. cuda: the CUDA build. Anything else is a
    pip requirement such as torch==2.13.0+cu130. Raises InstallError.
    """
    have = installed_torch()
    if have is not None and (
        choice == "auto" or (choice in ("cpu", "cuda") and is_cpu_build(have) == (choice == "cpu"))
    ):
        step(f"[1/3] PyTorch {have['version']} is there")
        return
    if choice not in ("auto", "cpu", "cuda") and not re.match(r"torch\b", choice):
        raise InstallError(
            f"--torch {choice}: give auto, cpu, cuda or a requirement of torch, such as torch==2.13.0+cu130."
        )
    if (
        have is not None
        and choice in ("cpu", "cuda")
        and pip("uninstall", "--quiet", "--yes", "torch").returncode
    ):
        raise InstallError(f"torch {have['version']} could not be removed.", see_log=True)
    if choice in ("auto", "cpu"):
        step(f"[1/3] PyTorch {TORCH_VERSION}, CPU build (190 MB)")
        step(f"      from {install_cpu_torch(pip)}")
        if choice == "auto" and NVIDIA_DRIVER.exists():
            step(
                "      there is an NVIDIA GPU: './tritone install --torch cuda' takes the CUDA build instead"
            )
        return
    # '===' keeps pip from preferring a CPU build of the same version that lies in an index beside it.
    requirement = f"torch==={TORCH_VERSION}" if choice == "cuda" else choice
    step(f"[1/3] PyTorch as asked for: {requirement} (CUDA builds are several GB)")
    if pip("install", "--quiet", requirement).returncode:
        raise InstallError(f"{requirement} could not be installed.", see_log=True)


def install_project(pip: Pip, root: Path, extras: Sequence[str]) -> None:
    """Install Tritone itself, in place: the server's Python sees what the virtual environment sees."""
    wanted = [e for e in extras if not (e == "server" and SERVER_IMAGE_BINARY.exists())]
    step(f"[2/3] tritonserver and what Tritone needs ({', '.join(wanted) or 'no extras'})")
    if sys.version_info >= (3, 13) and installed("numpy") is None:
        step("      numpy 1.26 has no wheel for Python 3.13: it is compiled (minutes, needs a C compiler)")
    target = str(root) + (f"[{','.join(wanted)}]" if wanted else "")
    if pip("install", "--quiet", "--editable", target).returncode:
        raise InstallError("the packages could not be installed.", see_log=True)


def check(root: Path) -> None:
    """Import what everything rests on. Raises InstallError with the traceback's last line."""
    step("[3/3] checking")
    lines = "import torch, numpy, grpc, yaml, tritonclient.grpc, launcher.server as s; "
    lines += "s.check_libraries(s.find_installation())"
    done = subprocess.run(
        [sys.executable, "-c", lines],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=root,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        check=False,
    )
    if done.returncode:
        last = (
            done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"exit status {done.returncode}"
        )
        raise InstallError(f"what was installed does not work: {last}. Run './tritone install --fresh'.")


def run(want: dict[str, Any], stamp: Path, pip: LoggedPip) -> None:
    root = Path(want["root"])
    started = time.monotonic()
    if installed("pip") is not None and tuple(map(int, installed("pip").split(".")[:2])) < PIP_NEEDED:  # type: ignore[union-attr]
        pip("install", "--quiet", "--upgrade", "pip")
    install_torch(pip, want["torch"])
    install_project(pip, root, want["extras"])
    check(root)
    stamp.write_text(json.dumps(want, indent=1))
    step(f"installed in {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str]) -> int:
    want, stamp = json.loads(arguments[0]), Path(arguments[1])
    pip = LoggedPip(Path(want["root"]) / ".tritone" / "install.log")
    try:
        run(want, stamp, pip)
    except InstallError as error:
        if error.see_log:
            step(f"end of {pip.log}:\n{pip.tail()}")
        step(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

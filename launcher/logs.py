"""Readable logs: one line a message with time and level, from the server's own format and from ours."""

from __future__ import annotations

import logging
import logging.handlers
import re
import sys
import threading
import time
from pathlib import Path
from typing import IO

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
LOG_BYTES = 5_000_000
LOG_FILES = 3

_SERVER_LINE = re.compile(r'^([IWEF])\d{4} (\d\d:\d\d:\d\d)\.\d+ \d+ (?:[\w./-]+:\d+)\] ?"?(.*?)"?$')
# What the model processes write (backends/serving/triton.py).
_MODEL_LINE = re.compile(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ (?:tritone\.)?(\w+) ([A-Z]+) (.*)$")
_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_TABLE = re.compile(r"^[+|]")
# What a server without a GPU, or any server on a machine without NVIDIA's monitoring, says at every start.
_EXPECTED = re.compile(
    r"pinned (system )?memory|CUDA memory pool|CudaDriverHelper|unable to create stream for|"
    r"DCGM unable|Failed to initialize NVML|Collecting CPU metrics|"
    r"TRITONBACKEND_|ensemble \S+ contains models that are not available"
)


def readable(line: str, everything: bool = False) -> tuple[int, str] | None:
    """One line of the server's output for people, with its logging level, or None if it says nothing to them.

    A line that is not in the server's format (a traceback, say) counts as an error. everything: keep each
    line as it is (log level debug).
    """
    line = line.rstrip()
    model = None if everything else _MODEL_LINE.match(line)
    if model is not None:
        clock, name, level, message = model.groups()
        return LEVELS.get(level.lower(), logging.ERROR), f"{clock} {level.lower():<7} {name}: {message}"
    match = _SERVER_LINE.match(line)
    level = _LEVELS[match.group(1)] if match else "error"
    if everything:
        return (LEVELS[level], line) if line else None
    if not line or _TABLE.match(line) or _EXPECTED.search(line):
        return None
    if match is None:
        return logging.ERROR, line
    if not match.group(3).strip():
        return None  # head of a table
    return LEVELS[level], f"{match.group(2)} {level:<7} {match.group(3)}"


def pump(output: IO[str], logger: logging.Logger, everything: bool) -> threading.Thread:
    """Pass a server's output on to a logger, in a thread that ends with the output."""

    def run() -> None:
        for line in output:
            message = readable(line, everything)
            if message is not None:
                logger.log(*message, extra={"plain": True})

    thread = threading.Thread(target=run, name="server-log", daemon=True)
    thread.start()
    return thread


def supervisor_logger(level: str, file: Path | None) -> logging.Logger:
    """Logger of the supervisor: to a rotating file, or to standard output where there is none."""
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stdout)
    else:
        handler = logging.handlers.RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    handler.setFormatter(_Formatter())
    logger = logging.getLogger("tritone")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    return logger


class _Formatter(logging.Formatter):
    """`12:00:01 info    message`; a record from the server's own output comes out as it is."""

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "plain", False):
            return record.getMessage()
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock} {record.levelname.lower():<7} supervisor: {record.getMessage()}"


def tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log file, indented; empty if there is none."""
    if not path.exists():
        return ""
    return "\n".join("  " + line for line in path.read_text(errors="replace").splitlines()[-lines:])

"""The server's output becomes readable lines; what says nothing to people is left out."""

import io
import logging

import pytest

from launcher.logs import pump, readable, supervisor_logger, tail

ERROR, WARNING, INFO = logging.ERROR, logging.WARNING, logging.INFO


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "I1130 05:22:23.021476 5255 model_lifecycle.cc:839] \"successfully loaded 'codec'\"",
            (INFO, "05:22:23 info    successfully loaded 'codec'"),
        ),
        (
            'E1130 05:23:02.149325 5255 main.cc:535] "failed to stop server: Internal"',
            (ERROR, "05:23:02 error   failed to stop server: Internal"),
        ),
        (
            "2026-11-30 05:50:29,123 tritone.talker WARNING the ramp ends in a cliff",
            (WARNING, "05:50:29 warning talker: the ramp ends in a cliff"),
        ),
        ("Traceback (most recent call last):", (ERROR, "Traceback (most recent call last):")),
        ("+--------+---------+", None),
        ("| codec  | 1       | READY  |", None),
        ("I1130 05:22:23.024811 5255 server.cc:604] ", None),
        ('I1130 05:22:22.507115 5255 cuda_memory_manager.cc:117] "CUDA memory pool disabled"', None),
        ("Error: Failed to initialize NVML", None),
        ("", None),
    ],
)
def test_lines(line, message):
    assert readable(line) == message


def test_everything_is_kept_at_level_debug():
    line = "| codec  | 1       | READY  |"
    assert readable(line, everything=True)[1] == line


def test_the_level_chooses(tmp_path):
    lines = (
        'I1130 05:22:23.021476 1 a.cc:1] "loaded"\n'
        'W1130 05:22:24.021476 1 a.cc:1] "hm"\n'
        'E1130 05:22:25.021476 1 a.cc:1] "oh"\n'
    )
    logger = supervisor_logger("warning", tmp_path / "log")
    pump(io.StringIO(lines), logger, everything=False).join()
    logger.info("not this")
    logger.error("this")
    text = (tmp_path / "log").read_text()
    assert "05:22:24 warning hm\n05:22:25 error   oh\n" in text
    assert "loaded" not in text
    assert text.endswith("error   supervisor: this\n")
    assert tail(tmp_path / "log", 1).endswith("this")
    assert tail(tmp_path / "none") == ""

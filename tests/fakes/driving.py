"""Drives the two engines as the serving layer would, in tests."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from backends.codec_engine import CodecEngine, CodecJob
from backends.talker import Prompt, SpeechRequest, Talker
from backends.talker_engine import SpeechStream, TalkerEngine


def no_progress(done: int, total: int) -> None:
    """For `warm_up`."""


def open_stream(talker: Talker, request: SpeechRequest, pieces: Sequence[str] | None = None) -> SpeechStream:
    """A stream whose whole text is there (pieces of it: `pieces`, else the request's text)."""
    texts = pieces if pieces is not None else [request.text]
    prompts: deque[Prompt] = deque(talker.build_prompt(request, text, i == 0) for i, text in enumerate(texts))
    ids: deque[int] = deque()
    if talker.text_mode == "per_frame":
        ids.extend(talker.text_to_ids(request.text))
    return SpeechStream(request, prompts, more_prompts=False, text_ids=ids, text_ended=True)


@dataclass
class Spoken:
    """What a talker engine made of one stream."""

    frames: np.ndarray
    reason: str
    error: Exception | None = None


def speak(
    engine: TalkerEngine,
    streams: Sequence[SpeechStream],
    each_step: Callable[[int], None] = lambda i: None,
    limit: int = 5000,
) -> list[Spoken]:
    """Step until all `streams` have ended; `each_step(i)` may admit, cancel or change streams between steps.

    Streams that are neither active nor queued yet are expected to be admitted by `each_step`.
    """
    rows: dict[SpeechStream, list[np.ndarray]] = {s: [] for s in streams}
    errors: dict[SpeechStream, Exception | None] = {}
    for i in range(limit):
        each_step(i)
        step = engine.step()
        assert len(step.streams) == len(step.frames)
        for stream, frame in zip(step.streams, step.frames, strict=True):
            if stream in rows:
                rows[stream].append(frame)
        for stream, reason, error in step.ended:
            assert stream.finish_reason == reason
            errors[stream] = error
        if all(s.finish_reason for s in streams):
            break
    else:
        raise AssertionError(f"streams did not end in {limit} steps")
    spec = engine._spec
    dtype = np.int32 if spec.kind == "codes" else np.float32
    none = np.empty((0, spec.width), dtype)
    return [
        Spoken(np.stack(rows[s]) if rows[s] else none, s.finish_reason or "", errors.get(s)) for s in streams
    ]


def speak_all(engine: TalkerEngine, requests: Sequence[SpeechRequest]) -> list[Spoken]:
    """Admit all requests at once and step until they have ended."""
    streams = [open_stream(engine.talker, r) for r in requests]
    for stream in streams:
        engine.admit(stream)
    return speak(engine, streams)


@dataclass
class Utterance:
    """Frames [n, width] cut into chunks of these sizes (repeated); the rest comes in a final one.

    prefix: frames that prime the codec. context: frames before each chunk that are sent along.
    cancel_after: chunks after which the stream is closed. empty_end: the final chunk holds no new frame.
    """

    frames: np.ndarray
    cuts: Sequence[int]
    prefix: int = 0
    context: int = 0
    cancel_after: int | None = None
    empty_end: bool = False
    samples: list[np.ndarray] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    end: int = 0  # samples received

    @property
    def audio(self) -> np.ndarray:
        return np.concatenate(self.samples, axis=1)


def chunks_of(key: Hashable, u: Utterance, deadline: float = 0.0) -> list[CodecJob]:
    """The jobs of an utterance, in order."""
    jobs: list[CodecJob] = []
    total = len(u.frames) - u.prefix
    begin = 0
    while True:
        size = min(u.cuts[len(jobs) % len(u.cuts)], total - begin)
        final = begin + size == total and not (u.empty_end and size)
        context = u.prefix if not jobs else min(u.context, begin)
        at = u.prefix + begin
        window = u.frames[at - context : at + size]
        jobs.append(CodecJob(key, len(jobs), window, context, begin, final, deadline + begin))
        begin += size
        if final:
            return jobs


def play(engine: CodecEngine, utterances: Sequence[Utterance], seed: int = 0) -> None:
    """Send the utterances' chunks in random order among streams, decode in between, collect the audio."""
    chance = random.Random(seed)
    jobs = {i: deque(chunks_of((id(u), i), u)) for i, u in enumerate(utterances)}
    sent = dict.fromkeys(jobs, 0)
    while jobs or engine.pending:
        for i in list(jobs):
            u = utterances[i]
            if u.cancel_after is not None and sent[i] >= u.cancel_after:
                engine.close((id(u), i))
                del jobs[i]
            elif chance.random() < 0.6:
                engine.submit(jobs[i].popleft())
                sent[i] += 1
                if not jobs[i]:
                    del jobs[i]
        if chance.random() < 0.7 or not jobs:
            decode_once(engine, utterances)


def decode_once(engine: CodecEngine, utterances: Sequence[Utterance]) -> list[CodecJob]:
    """One batch; checks that what comes back is contiguous."""
    batch = engine.form_batch()
    assert len({job.key for job in batch}) == len(batch)
    for result in engine.decode(batch):
        u = utterances[result.job.key[1]]
        if result.error is not None:
            u.errors.append(result.error)
            continue
        assert result.first_sample == u.end
        u.samples.append(result.samples)
        u.end += result.samples.shape[1]
    return batch

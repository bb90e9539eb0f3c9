"""The paced voices: a signal that proves itself, costs of a machine, the product's own engines around
them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.codec_engine import CodecEngine, CodecJob
from backends.families.paced import (
    FAMILY,
    MACHINES,
    SAMPLES_PER_FRAME,
    Pace,
    machine_of,
    numbers,
    sound,
    stamp,
    stamp_age,
)
from backends.graphs import EagerCapture
from backends.talker import SpeechRequest
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.voice import VoiceError, load_voice
from bench.paced_audio import PacedCheck
from chunk_policies import StreamBuffer
from client.audio import AudioChunk

VOICES = Path(__file__).resolve().parents[2] / "voices"
CPU = torch.device("cpu")


def frames(tag: int, count: int, begin: int = 0) -> np.ndarray:
    index = np.arange(begin, begin + count)
    return np.stack([np.full(count, tag), index, np.full(count, 7), np.full(count, 5)], axis=1)


def chunk(samples: np.ndarray) -> AudioChunk:
    return AudioChunk(0, 0, samples, len(samples) // SAMPLES_PER_FRAME, 24_000, 1, 0.0, None)


def check(tag: int, due: int, *parts: np.ndarray) -> str | None:
    checked = PacedCheck(tag, due)
    for part in parts:
        checked.chunk(chunk(part))
    checked.end()
    return checked.fault


def test_numbers_survive_the_way_through_float32_exactly():
    largest = 2**23 - 1
    rows = np.array([[0, 0, 0, 0], [largest, 17_000, largest, 1]])
    found = numbers(sound(rows)).reshape(2, -1, 4)
    assert (found[..., 1] == rows[:, :1]).all()
    assert (found[..., 2] == rows[:, 2:3]).all()
    groups = SAMPLES_PER_FRAME // 4
    assert (found[..., 0] == rows[:, 1:2] * groups + np.arange(groups)).all()
    assert np.abs(sound(rows)).max() <= 0.5


def test_whole_audio_passes_however_it_is_cut():
    audio = sound(frames(9, 12)).reshape(-1)
    assert check(9, 12, audio) is None
    assert check(9, 12, *np.split(audio, [2 * SAMPLES_PER_FRAME, 6 * SAMPLES_PER_FRAME])) is None


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda a: np.delete(a, 4, axis=0), "was due"),
        (lambda a: a[[0, 1, 2, 2, 3, 4]], "was due"),
        (lambda a: a[[0, 2, 1, 3, 4, 5]], "was due"),
        (lambda a: a[:5], "were due"),
        (lambda a: np.concatenate([a[:3], sound(frames(8, 3, begin=3))]), "belongs to stream 8"),
    ],
    ids=["lost", "repeated", "out of order", "cut off", "another stream's"],
)
def test_damage_is_found(damage, words):
    damaged = damage(sound(frames(9, 6))).reshape(-1)
    assert words in check(9, 6, damaged)


def test_loss_within_a_frame_is_found():
    audio = sound(frames(9, 2)).reshape(-1)
    for lost in (1, 3, 4, 400):
        assert check(9, 2, np.delete(audio, slice(100, 100 + lost))) is not None


def test_stamps_measure_time_across_their_wrap():
    for then in (0.0, 83.0, 1e6):
        assert stamp_age(then + 3.25, stamp(then)) == pytest.approx(3.25, abs=2e-5)


@pytest.fixture(params=["paced-zero", "paced-h100", "paced-ascend-910b"])
def voice(request):
    return load_voice(VOICES / f"{request.param}.yaml")


def test_the_voices_load_and_their_schedules_warn_of_nothing(voice):
    assert voice.stream.warnings == ()
    assert machine_of(voice) in MACHINES.values()
    assert FAMILY.load_talker(voice, CPU).spec == FAMILY.load_codec(voice, CPU).spec


def test_both_machines_have_one_stream_configuration():
    ascend, h100 = (load_voice(VOICES / f"paced-{name}.yaml") for name in ("ascend-910b", "h100"))
    assert ascend.stream == h100.stream


def test_what_is_wrong_with_a_voice_is_said(voice):
    def refused(**options):
        with pytest.raises(VoiceError) as caught:
            FAMILY.load_talker(replace(voice, options=options), CPU)
        return str(caught.value)

    assert "options.machine is 'abacus'" in refused(machine="abacus")
    assert "step" in refused(machine="free", costs={"step": -1.0})
    assert "unknown" in refused(machine="free", costs={"stop": 1.0})
    assert "options.costs is 3" in refused(machine="free", costs=3)
    assert "options.seed" in refused(machine="free", seed="x")
    with pytest.raises(VoiceError, match="--device cpu"):
        FAMILY.load_codec(voice, torch.device("cuda"))


def test_time_is_spent_as_the_machine_would(voice, monkeypatch):
    spent = []
    monkeypatch.setattr("backends.families.paced.spend", spent.append)
    machine = replace(machine_of(voice), jitter=0.0)
    pace = Pace(machine, 0)
    pace.step(8)
    pace.decode(4, 15)
    assert spent == [machine.step_seconds(8), machine.codec_seconds(4, 15, 0)]
    assert pace.prefill_seconds(3) == pace.prefill_seconds(3)
    assert machine.prefill == 0 or pace.prefill_seconds(3) != pace.prefill_seconds(4)


def test_only_rows_of_streams_cost_time(monkeypatch):
    spent = []
    monkeypatch.setattr("backends.families.paced.spend", spent.append)
    voice = load_voice(VOICES / "paced-h100.yaml")
    engine = TalkerEngine(FAMILY.load_talker(voice, CPU), voice.engine, capture=EagerCapture())
    codec = CodecEngine(
        FAMILY.load_codec(voice, CPU), voice.engine, voice.stream.frame_sizes("state"), capture=EagerCapture()
    )
    engine.warm_up(lambda done, total: None)
    codec.warm_up(lambda done, total: None)
    assert spent == []


def test_streams_of_many_pieces_come_whole_through_the_engines():
    voice = load_voice(VOICES / "paced-zero.yaml")
    talker = FAMILY.load_talker(voice, CPU)
    engine = TalkerEngine(talker, voice.engine, capture=EagerCapture())
    codec = CodecEngine(
        FAMILY.load_codec(voice, CPU), voice.engine, voice.stream.frame_sizes("state"), capture=EagerCapture()
    )
    texts = {tag: [f"piece {tag}"] * tag for tag in range(1, 6)}
    streams, checks = {}, {}
    for tag, pieces in texts.items():
        request = SpeechRequest("", seed=tag)
        stream = SpeechStream(request, more_prompts=False, text_ended=True)
        stream.prompts.extend(talker.build_prompt(request, piece, i == 0) for i, piece in enumerate(pieces))
        engine.admit(stream)
        streams[stream] = (tag, StreamBuffer(voice.stream.policy(frame_seconds=0.08)))
        checks[tag] = PacedCheck(tag, sum(map(len, pieces)))
    sent = dict.fromkeys(checks, 0)

    def decode(tag: int, buffer: StreamBuffer) -> None:
        while buffer.has_chunk_ready():
            part = buffer.pop_chunk()
            array = np.stack(part.items).astype(np.int32)
            codec.submit(CodecJob(tag, part.chunk_index, array, 0, sent[tag], part.is_final, 0.0))
            sent[tag] += len(array)
        for result in codec.decode(codec.form_batch()):
            assert result.error is None
            checks[result.job.key].chunk(chunk(result.samples[0]))

    while engine.active:
        step = engine.step()
        for stream, frame in zip(step.streams, step.frames, strict=True):
            streams[stream][1].put(frame)
        for stream, reason, _ in step.ended:
            assert reason == "stop"
            streams[stream][1].signal_done()
        for tag, buffer in streams.values():
            decode(tag, buffer)
    while codec.pending:
        for tag, buffer in streams.values():
            decode(tag, buffer)
    for checked in checks.values():
        checked.end()
        assert checked.fault is None

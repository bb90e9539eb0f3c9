"""The training scripts, on a few seconds of made-up speech: every step's output is what the next one reads."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from backends.families.wren import FAMILY
from backends.families.wren.geometry import (
    CODEBOOK_SIZE,
    CODEBOOKS,
    SAMPLE_RATE,
    SAMPLES_PER_FRAME,
    TICKS_PER_FRAME,
)
from backends.families.wren.phones import PAUSE
from backends.talker import SpeechRequest
from backends.voice import VoiceConfig
from tests.wren.driving import decode
from voices.wren.training import checkpoints, texts
from voices.wren.training.alignments import align, choose_cut, load_examples, phones_of, save_examples
from voices.wren.training.codec_network import CodecNetwork, Quantiser
from voices.wren.training.export import export
from voices.wren.training.prepare import prepare
from voices.wren.training.speech import Segment, Speech
from voices.wren.training.synthesise import contractions, words_of
from voices.wren.training.train_codec import CodecTraining
from voices.wren.training.train_codec import train as train_codec
from voices.wren.training.train_talker import TalkerTraining
from voices.wren.training.train_talker import train as train_talker

PHONES = ("pau", "hh", "ax", "l", "ow", "pau", "w", "er", "l", "d", "pau")
SECONDS = 0.11  # a phone


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard of six utterances in the files that synthesise.c writes: buzzes with a falling pitch, and noise."""
    folder = tmp_path_factory.mktemp("work")
    rng = np.random.default_rng(0)
    pcm, f0s, lines = [], [], []
    for utterance in range(6):
        seconds = SECONDS * len(PHONES)
        times = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
        f0 = 160 + 10 * utterance - 20 * times
        phase = np.cumsum(f0) / SAMPLE_RATE
        loud = np.where((times > SECONDS) & (times < seconds - SECONDS), 0.2, 0.001)
        buzz = sum(np.sin(2 * np.pi * k * phase) / k for k in range(1, 12))
        audio = loud * (buzz + 0.1 * rng.standard_normal(len(times)))
        track = np.where(loud > 0.1, f0, 0)[:: SAMPLE_RATE // 200].astype(np.float32)
        pcm.append((np.clip(audio, -1, 1) * 32767).astype(np.int16))
        f0s.append(track)
        items = [
            f"{phone}|{(place + 1) * SECONDS:.3f}|{int(phone in ('ow', 'er'))}|{int(place in (1, 6))}|"
            + ("," if place in (1, 2, 3, 4) else "?" if place in (6, 7, 8, 9) else "")
            for place, phone in enumerate(PHONES)
        ]
        lines.append(f"{len(times)}\t{len(track)}\thello, world?\t{' '.join(items)} \n")
    (folder / "speech-00.pcm").write_bytes(np.concatenate(pcm).tobytes())
    (folder / "speech-00.f0").write_bytes(np.concatenate(f0s).tobytes())
    (folder / "speech-00.tsv").write_text("".join(lines))
    return folder


def test_every_step_follows_from_the_one_before(work: Path, tmp_path: Path, voice: VoiceConfig) -> None:
    speech = Speech.in_folder(work)
    settings = CodecTraining(steps=5, batch=2, frames=6, quantise_from=2, gather=1)
    torch.manual_seed(settings.seed)
    before = CodecNetwork().state_dict()
    losses = train_codec(speech, settings, work / checkpoints.CODEC)
    assert len(losses) == 5
    assert np.isfinite(losses).all()
    after = load_file(work / checkpoints.CODEC)
    for part in ("encoder.latent_out.weight", "quantiser.codewords", "decoder.head.weight"):
        assert not torch.equal(after[part], before[part]), part

    codec = CodecNetwork().eval()
    checkpoints.load(codec, work / checkpoints.CODEC)
    examples = prepare(speech, codec, seed=0)
    assert len(examples) == 6
    save_examples(examples, work / "examples-00.npz")
    examples = load_examples([work / "examples-00.npz"])

    talker_settings = TalkerTraining(steps=12, frames=60, learning_rate=1e-2, validation=1)
    losses = train_talker(examples, codec.quantiser.codewords, talker_settings, work / checkpoints.TALKER)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    once_more = dataclasses.replace(talker_settings, steps=1)
    trained = load_file(work / checkpoints.TALKER)
    train_talker(examples, codec.quantiser.codewords, once_more, work / checkpoints.TALKER, resume=True)
    resumed = load_file(work / checkpoints.TALKER)
    change = (resumed["backbone.norm.weight"] - trained["backbone.norm.weight"]).abs().max()
    assert 0 < change < 0.01  # went on from there, did not start anew

    for name in ("lexicon.tsv.gz", "lts.txt.gz"):
        shutil.copy(voice.checkpoint / name, work)
    export(work, tmp_path / "voice")
    made = dataclasses.replace(voice, checkpoint=tmp_path / "voice")
    talker, spoken = (
        FAMILY.load_talker(made, torch.device("cpu")),
        FAMILY.load_codec(made, torch.device("cpu")),
    )
    talker.allocate(2, 64)
    spoken.allocate(2)
    assert talker.build_prompt(SpeechRequest("Hello."), "Hello.", True).inputs.shape == (6, 6)
    audio = decode(spoken, 0, torch.from_numpy(examples[0].codes.astype(np.int64)))
    assert torch.isfinite(audio).all()
    assert len(audio) == len(examples[0].codes) * SAMPLES_PER_FRAME


def test_the_trained_decoder_is_the_one_that_serves(work: Path) -> None:
    """Whole-utterance rendering in training and stateful decoding give the same audio."""
    from backends.families.wren.codec import WrenCodec  # noqa: PLC0415
    from backends.families.wren.excitation import quantise_log_f0  # noqa: PLC0415

    torch.manual_seed(3)
    network = CodecNetwork().eval().requires_grad_(False)
    network.quantiser.start(torch.randn(600, 64), rounds=1)
    codes = torch.randint(0, CODEBOOK_SIZE, (7, CODEBOOKS))
    voicing = network.decoder(network.quantiser.decode(codes)[None])
    expected = network.render(voicing, quantise_log_f0(voicing.log_f0))[0].clamp(-1, 1)
    codec = WrenCodec(network.quantiser.codewords, network.decoder, torch.device("cpu"))
    codec.allocate(1)
    torch.testing.assert_close(decode(codec, 0, codes, (2, 3)), expected, atol=1e-5, rtol=0)


def test_the_quantiser_follows_what_it_is_shown() -> None:
    torch.manual_seed(0)
    before = torch.randn(40, 50, 64)
    shown = 0.5 * before + 1
    quantiser = Quantiser()
    quantiser.decay = 0.5
    quantiser.start(before, rounds=1)
    error_at_first = (quantiser.eval()(shown).latents - shown).pow(2).mean()
    quantiser.train()
    for _ in range(6):
        quantised = quantiser(shown)
    assert 0 < quantised.used < 1  # 2,000 latents cannot keep 512 codewords of every codebook alive
    now = quantiser.eval()(shown)
    assert (now.latents - shown).pow(2).mean() < 0.2 * error_at_first
    torch.testing.assert_close(quantiser.decode(quantiser.encode(shown)), now.latents, atol=1e-4, rtol=1e-4)


def test_alignments_say_which_phone_sounds_when() -> None:
    segments = [
        Segment("pau", 0.1, False, False, ""),
        Segment("hh", 0.13, False, True, "!"),
        Segment("ay", 0.30, True, False, "!"),
        Segment("pau", 0.5, False, False, ""),
    ]
    cut = choose_cut(segments, int(0.5 * SAMPLE_RATE), random.Random(1))
    assert cut is not None
    example = align(phones_of(segments), cut, np.zeros((cut.frames, CODEBOOKS), np.int64))
    ticks, elapsed = example.ticks.flatten(), example.elapsed.flatten()
    lengths = np.bincount(ticks)
    assert lengths[1] == 3 and lengths[2] == 17  # 30 and 170 ms
    assert (np.diff(ticks) >= 0).all() and ticks[-1] == 3
    assert elapsed[ticks == 2].tolist() == list(range(17))
    ends = (example.patterns[:, None] >> np.arange(TICKS_PER_FRAME) & 1).flatten()
    assert np.flatnonzero(ends).tolist() == [*(np.flatnonzero(np.diff(ticks)) - 0), len(ticks) - 1]
    # The pointer after the last frame has passed the last pause: that is how speech ends.
    assert example.pointer[-1] == len(segments)
    assert (example.pointer[:-1] == example.ticks[1:, 0]).all()
    assert (example.pointer_elapsed[:-1] == example.elapsed[1:, 0]).all()
    assert [phone.phrase_end for phone in phones_of(segments)] == ["", "", "", "!"]
    assert phones_of(segments)[0].name == PAUSE


def test_utterances_without_pauses_around_them_are_left_out() -> None:
    segments = [
        Segment(name, 0.1 * (i + 1), False, False, "") for i, name in enumerate(("hh", "ay", "hh", "ay"))
    ]
    assert choose_cut(segments, 8000, random.Random(0)) is None


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        ("The cat sat on the mat", True),
        ("Too short", False),
        ("See http://example.com for the whole story", False),
        ("It has a lot of digits 123456789 in it", False),
        ("NASA and ESA and JAXA work together", False),
        ("x" * 200, False),
    ],
)
def test_sentences_that_flite_reads_well_are_taken(text: str, fit: bool) -> None:
    assert texts.is_fit(text) is fit


def test_running_text_becomes_sentences() -> None:
    found = list(
        texts.fit_sentences('He said (quietly) "this is it".  Then they all -- slowly -- went home. No.')
    )
    assert found == ["He said quietly this is it.", "Then they all, slowly, went home."]


def test_templates_are_filled() -> None:
    sentences = list(texts.templates(random.Random(0)))
    assert len(set(sentences)) > 1000
    assert not any("{" in sentence for sentence in sentences)


def test_words_for_the_lexicon(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Don't stop: the END.\nthe 3rd")
    assert words_of([tmp_path / "text.txt"]) == ["don't", "end", "rd", "stop", "the"]
    assert {"i'm", "won't", "o'clock"} <= set(contractions())

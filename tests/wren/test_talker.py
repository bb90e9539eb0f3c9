"""The talker: the codes of the prototype, the same for a stream alone and in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backends.families.wren.backbone import WINDOW
from backends.families.wren.drawing import CodeDraw
from backends.families.wren.durations import Pointers
from backends.families.wren.geometry import CODEBOOKS
from backends.families.wren.network import TalkerNetwork
from backends.families.wren.step_input import LOOK_AHEAD
from backends.families.wren.talker import WrenTalker
from backends.talker import SpeechRequest, StepFlag
from tests.wren.driving import Speaking, sampling_table, speak

ROWS = 21
TEXTS = (
    "The birch canoe slid on the smooth planks.",
    "Hello there, how are you?",
    "Don't stop; we're nearly there!",
    "It costs $23.50, or 15% less, at 5:30 on the 3rd of May 2024.",
    "Yes.",
    "Rice is often served in round bowls.",
)


def test_greedy_codes_are_those_of_the_prototype(
    talker: WrenTalker, reference: dict[str, np.ndarray]
) -> None:
    sentences = reference["sentences"].tolist()
    codes = speak(talker, sampling_table(ROWS), dict(enumerate(sentences)))
    for index, sentence in enumerate(sentences):
        assert np.array_equal(codes[index].numpy(), reference[f"codes_{index}"]), sentence


@pytest.mark.parametrize("speed", [0.7, 1.5])
def test_speed_is_that_of_the_prototype(
    talker: WrenTalker, reference: dict[str, np.ndarray], speed: float
) -> None:
    for index in range(2):
        text = str(reference["sentences"][index])
        codes = speak(talker, sampling_table(ROWS, speed=speed), {5: text})[5]
        assert np.array_equal(codes.numpy(), reference[f"codes_{index}_at_{speed}"])
        normal = len(reference[f"codes_{index}"])
        assert len(codes) < normal if speed > 1 else len(codes) > normal


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_stream_says_the_same_alone_and_with_15_others(talker: WrenTalker, temperature: float) -> None:
    table = sampling_table(ROWS, temperature, top_k=20)
    texts = {slot: f"{TEXTS[slot % len(TEXTS)]} Number {slot}." for slot in range(16)}
    together = speak(talker, table, texts)
    for slot in (0, 7, 15):
        alone = speak(talker, table, {19 - slot: texts[slot]}, padding=slot)[19 - slot]
        assert torch.equal(alone, together[slot]), texts[slot]


def test_streams_join_and_are_cancelled_around_a_stream(talker: WrenTalker) -> None:
    table = sampling_table(ROWS, 0.7, top_k=20)
    alone = speak(talker, table, {0: TEXTS[0]})[0]
    speaking = Speaking(talker, table)
    speaking.start({11: TEXTS[0]})
    speaking.step()
    speaking.start({3: TEXTS[1], 4: TEXTS[3]}, padding=17)
    for _ in range(6):
        speaking.step(extra_null_rows=1)
    speaking.running.remove(3)
    speaking.step(extra_null_rows=2)
    speaking.start({3: TEXTS[5], 12: TEXTS[2], 13: TEXTS[4]})
    assert torch.equal(speaking.finish()[11], alone)


def test_prefill_with_padding_encodes_as_without(talker: WrenTalker) -> None:
    inputs = talker.build_prompt(SpeechRequest(TEXTS[1]), TEXTS[1], True).inputs[None]
    length = torch.tensor([inputs.shape[1]])
    alone = talker.phone_encoder(inputs, length)
    padded = torch.nn.functional.pad(inputs, (0, 0, 0, 40), value=1)
    assert torch.equal(talker.phone_encoder(padded, length)[:, : inputs.shape[1]], alone)
    assert not talker.phone_encoder(padded, length)[:, inputs.shape[1] :].any()
    torch.testing.assert_close(talker.phone_encoder(inputs), alone)


def test_steps_compute_what_the_network_was_trained_to(
    talker: WrenTalker, network: TalkerNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All frames of an utterance at once, as in training, have the hidden states of the steps."""
    walked: list[Pointers] = []
    advance = talker.durations.advance

    def advance_and_record(*arguments: torch.Tensor, **keywords: torch.Tensor) -> Pointers:
        walked.append(advance(*arguments, **keywords))
        return walked[-1]

    monkeypatch.setattr(talker.durations, "advance", advance_and_record)
    text = f"{TEXTS[3]} {TEXTS[0]}"  # longer than the window
    speaking = Speaking(talker, sampling_table(ROWS))
    speaking.start({6: text})
    hidden, latents = [talker.floats[6, :256].clone()], [torch.zeros(64)]
    while speaking.running:
        speaking.step()
        hidden.append(talker.floats[6, :256].clone())
        latents.append(talker.floats[6, 256:320].clone())
    assert len(hidden) > 1.5 * WINDOW

    features = talker.build_prompt(SpeechRequest(text), text, True).inputs
    phones = torch.nn.functional.pad(network.phone_encoder(features[None]), (0, 0, 0, LOOK_AHEAD))
    ticks = torch.stack([torch.zeros(9, dtype=torch.int64), *(pointers.ticks[0] for pointers in walked)])
    elapsed = torch.stack([torch.zeros(9, dtype=torch.int64), *(pointers.elapsed[0] for pointers in walked)])
    previous = torch.stack([latents[0], *latents[:-1]]) / talker.latent_scale
    x = network.step_input(
        phones,
        ticks=ticks[None, :, :-1],
        elapsed=elapsed[None, :, :-1],
        pointer=ticks[None, :, -1],
        pointer_elapsed=elapsed[None, :, -1],
        latents=previous[None],
    )
    torch.testing.assert_close(network.backbone(x)[0], torch.stack(hidden), atol=1e-3, rtol=1e-3)


def test_a_code_is_as_likely_as_the_network_says(talker: WrenTalker, network: TalkerNetwork) -> None:
    """The fused logits of each codebook lead to the code that the plain ones do."""
    hidden = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    slots = torch.arange(8)
    greedy = CodeDraw.of(sampling_table(ROWS), slots, torch.full((8, CODEBOOKS), 0.5))
    codes, total = talker.depth.draw(hidden, greedy)
    codewords = talker.depth.codewords
    latent = network.depth.regression(hidden) * talker.latent_scale
    partial = torch.zeros_like(latent)
    for index in range(CODEBOOKS):
        logits = network.depth(
            index,
            hidden,
            latent=latent,
            partial=partial,
            codewords=codewords[index],
            latent_scale=talker.latent_scale,
        )
        assert torch.equal(logits.argmax(1), codes[:, index])
        partial = partial + codewords[index][codes[:, index]]
    torch.testing.assert_close(total, partial, atol=1e-4, rtol=1e-4)


def test_frames_are_whole_and_flags_say_where_speech_ends(talker: WrenTalker) -> None:
    speaking = Speaking(talker, sampling_table(ROWS, 0.7, top_k=20))
    speaking.start({2: TEXTS[4]})
    codes = speaking.finish()[2]
    assert codes.dtype == torch.int64
    assert codes.shape[1] == CODEBOOKS
    assert codes.min() >= 0 and codes.max() < talker.spec.sizes[0]
    assert 3 <= len(codes) <= 15  # "Yes." takes about half a second


def test_a_step_reports_numbers_that_went_bad(talker: WrenTalker) -> None:
    speaking = Speaking(talker, sampling_table(ROWS))
    speaking.start({0: TEXTS[0], 1: TEXTS[1]})
    talker.floats[0, 256:320] = torch.nan
    slots = torch.tensor([0, 1])
    out = talker.step(slots, slots * 0, torch.full((2, CODEBOOKS), 0.5), speaking.table, 0)
    assert out.flags.tolist() == [StepFlag.FAILED, StepFlag.VALID]
    assert (out.raw >= 0).all() and (out.raw < talker.spec.sizes[0]).all()


def test_a_slot_recovers_from_numbers_that_went_bad(talker: WrenTalker) -> None:
    good = speak(talker, sampling_table(ROWS), {0: TEXTS[4]})[0]
    talker.floats[0] = torch.nan
    talker.backbone.rings.fill_(torch.nan)
    assert torch.equal(speak(talker, sampling_table(ROWS), {0: TEXTS[4]})[0], good)


def test_the_null_slot_stays_finite(talker: WrenTalker) -> None:
    table = sampling_table(ROWS, 1.0)
    null = torch.full((4,), ROWS - 1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        noise = torch.rand(4, CODEBOOKS, generator=generator)
        out = talker.step(null, null * 0, noise, table, 0)
        assert (out.flags & StepFlag.FAILED == 0).all()
    assert torch.isfinite(talker.floats).all()
    assert torch.isfinite(talker.backbone.rings).all()


def test_text_longer_than_the_table_is_refused(talker: WrenTalker) -> None:
    talker.allocate(1, 40)
    text = "This sentence has more phones than the table has rows, so that nobody could speak it."
    with pytest.raises(ValueError, match=r"phones; the limit is 40 \(engine.max_length\)"):
        talker.build_prompt(SpeechRequest(text), text, True)


def test_the_longest_pieces_fit(talker: WrenTalker) -> None:
    for text in ("7" * 300, "W W " * 75, "x" * 300, "%7" * 150, "antidisestablishmentarianism" * 10):
        prompt = talker.build_prompt(SpeechRequest(text), text, True)
        assert talker.positions(prompt, 5000) <= talker.max_length


def test_the_budget_of_a_piece_is_far_above_what_it_takes(talker: WrenTalker) -> None:
    for text in TEXTS:
        budget = talker.build_prompt(SpeechRequest(text), text, True).max_frames
        frames = len(speak(talker, sampling_table(ROWS), {0: text})[0])
        assert 2 * frames < budget < 20 * frames + 50


def test_state_of_a_slot_is_as_stated(talker: WrenTalker) -> None:
    held = talker.phones.nbytes + talker.floats.nbytes + talker.integers.nbytes + talker.backbone.rings.nbytes
    assert talker.slot_bytes() * ROWS == held

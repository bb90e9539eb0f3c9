"""The step over slots: the same codes alone, in any batch, on any slot; failures of single rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from backends.talker import SamplingParameters
from tests.fakes.strict import StrictCapture
from tests.qwen3_tts.model import PUBLISHED, engine, request, run, speak, stream, talker

TEXTS = ("Good morning to you all.", "Hm.", "Never mind the rest.", "The sea, the sea!", "A")


@pytest.fixture(scope="module")
def model(checkpoint):
    return talker(checkpoint("1.7b custom_voice"))


def asked(index: int, **fields):
    return request(
        TEXTS[index],
        **{"seed": index, "sampling": PUBLISHED, "speaker": "ryan", "max_frames": 12, **fields},
    )


def test_published_sampling_defaults_come_from_the_checkpoint(model):
    assert model.defaults == PUBLISHED
    assert {name: p.default for name, p in model.parameters.items()} == {
        "subtalker_temperature": 0.9,
        "subtalker_top_k": 50,
        "subtalker_top_p": 1.0,
    }


def test_a_seed_speaks_the_same_alone_among_others_and_on_a_used_slot(model):
    alone = [speak(model, asked(i)) for i in range(5)]
    assert len({codes.tobytes() for codes in alone}) == 5
    streams = [stream(asked(i), model.build_prompt(asked(i), TEXTS[i], True)) for i in (4, 0, 3, 1, 2)]
    together = run(engine(model, slots=2), streams, every=2)  # five streams over two slots
    for index, codes in zip((4, 0, 3, 1, 2), together, strict=True):
        np.testing.assert_array_equal(codes, alone[index])


def test_another_seed_speaks_otherwise(model):
    assert not np.array_equal(speak(model, asked(0)), speak(model, asked(0, seed=9)))


def test_sampling_of_the_predictor_is_its_own(model):
    cold = SamplingParameters(0.9, 50, 1.0, 1.05, {"subtalker_temperature": 0.0})
    one, two = (speak(model, asked(0, seed=s, sampling=cold, max_frames=1)) for s in (1, 3))
    again = speak(model, asked(0, seed=1, sampling=replace(cold, temperature=0.0), max_frames=1))
    assert one[0, 0] != two[0, 0]
    assert speak(model, asked(0, seed=5, sampling=replace(cold, temperature=0.0), max_frames=1)).tolist() == (
        again.tolist()
    )


def test_reserved_codes_are_never_spoken(model):
    """Even when they are the likeliest by far."""
    head = model.network.head.weight
    kept = head.clone()
    reserved = torch.arange(64, 64 + 1024) != model._ids.codec_eos
    head[64:][reserved] *= 50
    codes = speak(model, asked(0, sampling=SamplingParameters(5.0), max_frames=24))
    head.copy_(kept)
    assert codes.max() < 64


def test_the_end_code_waits_for_two_frames(model):
    head = model.network.head.weight
    kept = head.clone()
    head.zero_()  # all codes are equally likely; then the end code is made certain
    certain = SamplingParameters(0.0)
    hidden = model._hidden

    class Certain(torch.nn.Module):
        weight = head

        def forward(self, x):
            logits = x.new_zeros(len(x), len(head))
            logits[:, model._ids.codec_eos] = 1.0
            return logits

    network_head, model.network.head = model.network.head, Certain()
    codes = speak(model, asked(0, sampling=certain))
    model.network.head = network_head
    head.copy_(kept)
    assert len(codes) == 2
    assert hidden.shape[1] == 64


def test_repetition_penalty_forgets_between_pieces(model):
    strong = SamplingParameters(0.0, 0, 1.0, 1.5, {"subtalker_temperature": 0.0})
    codes = speak(model, asked(3, sampling=strong, max_frames=20))
    free = speak(model, asked(3, sampling=replace(strong, repetition_penalty=1.0), max_frames=20))
    np.testing.assert_array_equal(codes[0], free[0])
    assert not np.array_equal(codes, free)
    first = stream(asked(0, sampling=strong, max_frames=6), model.build_prompt(asked(0), TEXTS[0], True))
    first.prompts[0].max_frames = 3
    again = model.build_prompt(asked(0), TEXTS[0], True)
    again.max_frames = 3
    first.prompts.append(again)
    (both,) = run(engine(model), [first])
    np.testing.assert_array_equal(both[:3], both[3:])


def test_a_prompt_prefilled_in_runs_is_the_prompt_prefilled_at_once(model):
    prompt = model.build_prompt(asked(0, instructions="Speak slowly and clearly."), TEXTS[0], True)
    length = len(prompt.inputs)
    results = []
    for runs in ((length,), (16, 16, length - 32)):
        model.allocate(2, 128)
        begin = 0
        for count in runs:
            inputs = torch.zeros(1, 64, prompt.inputs.shape[1])
            inputs[0, :count] = prompt.inputs[begin : begin + count]
            model.prefill(torch.tensor([1]), inputs, torch.tensor([count]), torch.tensor([begin]))
            begin += count
        results.append((model._hidden[1].clone(), model._position[1].item()))
    assert results[0][1] == results[1][1] == length
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=0)


def test_a_row_that_goes_bad_ends_alone_and_leaves_a_clean_slot(model):
    machine = engine(model, slots=2)
    streams = [stream(asked(i), model.build_prompt(asked(i), TEXTS[i], True)) for i in (0, 2)]
    for s in streams:
        machine.admit(s)
    machine.step()
    machine.step()
    model._hidden[streams[0].slot] = torch.nan
    ended = {}
    frames = []
    while any(s.finish_reason is None for s in streams):
        done = machine.step()
        frames += [f for s, f in zip(done.streams, done.frames, strict=True) if s is streams[1]]
        ended |= {s: reason for s, reason, _ in done.ended}
    assert ended[streams[0]] == "error"
    assert ended[streams[1]] == "length"
    expected = speak(model, asked(2))
    np.testing.assert_array_equal(np.array(frames), expected[-len(frames) :])
    for _ in range(2):  # both slots, the spoilt one too
        later = stream(asked(1), model.build_prompt(asked(1), TEXTS[1], True))
        (codes,) = run(machine, [later])
        np.testing.assert_array_equal(codes, speak(model, asked(1)))
        machine._free.rotate(1)


def test_a_step_can_be_captured(model):
    """No host read and no shape that depends on data: the strict back end refuses what CUDA graphs would."""
    strict = StrictCapture()
    machine = engine(model, slots=2, capture=strict)
    streams = [stream(asked(i), model.build_prompt(asked(i), TEXTS[i], True)) for i in (0, 1)]
    codes = run(machine, streams, every=3)
    assert machine.counters.misses == machine.counters.fallbacks == 0
    for index in (0, 1):
        np.testing.assert_array_equal(codes[index], speak(model, asked(index)))


def test_bytes_of_a_slot(model):
    model.allocate(3, 100)
    cache = 2 * 2 * 100 * 2 * 16 * 4  # keys and values, layers, positions, heads, size, float32
    assert cache < model.slot_bytes() < cache + 2000

"""Checkpoint folders: what is wrong with one is named; devices, dtypes and sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from backends.families.qwen3_tts.config import SpeechTokenizerConfig, TalkerConfig
from backends.families.qwen3_tts.random_checkpoint import model_config, speech_tokenizer_config
from backends.families.qwen3_tts.tensors import count, decoder_tensors, encoder_tensors, talker_tensors
from backends.family import load_family
from backends.make_random import main as make_random
from backends.serving.settings import VOICES
from backends.voice import VoiceError, load_voice
from tests.qwen3_tts.model import CPU, codec, request, speak, talker


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A copy that may be damaged."""
    return Path(shutil.copytree(checkpoint("1.7b custom_voice"), tmp_path / "checkpoint"))


def edit(path: Path, change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_tensors(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_missing_unknown_and_misshapen_tensors_are_named(folder):
    def damage(tensors):
        del tensors["talker.model.layers.1.self_attn.q_proj.weight"]
        tensors["talker.model.layers.9.mlp.up_proj.weight"] = torch.zeros(2)
        tensors["talker.codec_head.weight"] = torch.zeros(3, 4)

    edit_tensors(folder / "model.safetensors", damage)
    with pytest.raises(VoiceError) as error:
        talker(folder)
    message = str(error.value)
    assert "missing talker.model.layers.1.self_attn.q_proj.weight" in message
    assert "unknown talker.model.layers.9.mlp.up_proj.weight" in message
    assert "misshapen: talker.codec_head.weight is [3, 4], not [1088, 64]" in message


def test_many_missing_tensors_are_counted(folder):
    edit_tensors(
        folder / "speech_tokenizer" / "model.safetensors",
        lambda tensors: [tensors.pop(name) for name in list(tensors) if ".quantizer." in name],
    )
    with pytest.raises(VoiceError, match=r"missing decoder\.quantizer\..* and 31 more"):
        codec(folder)


def test_weights_in_shards(checkpoint, folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    asked = request(max_frames=3)
    np.testing.assert_array_equal(
        speak(talker(folder), asked), speak(talker(checkpoint("1.7b custom_voice")), asked)
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "is not a folder; download"),
        (lambda f: (f / "config.json").unlink(), "config.json: cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: is not valid JSON"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            r"model.safetensors: is missing \(there is pytorch_model.bin, but only safetensors are read",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"12345678"), "cannot be read as safetensors"),
        (lambda f: (f / "vocab.json").unlink(), "a checkpoint needs tokenizer.json, or vocab.json"),
        (lambda f: (f / "generation_config.json").write_text("["), "generation_config.json: is not valid"),
        (
            lambda f: edit(f / "config.json", lambda c: c.update(tts_model_type="sing")),
            "tts_model_type is 'sing'; it must be one of custom_voice, voice_design, base",
        ),
        (
            lambda f: edit(f / "config.json", lambda c: c.update(model_type="qwen3_omni")),
            "model_type is 'qwen3_omni'; only 'qwen3_tts' is supported",
        ),
        (
            lambda f: edit(f / "config.json", lambda c: c["talker_config"].update(hidden_act="gelu")),
            "talker_config: hidden_act is 'gelu'",
        ),
        (
            lambda f: edit(f / "config.json", lambda c: c["talker_config"].pop("codec_bos_id")),
            "talker_config: codec_bos_id is missing",
        ),
        (
            lambda f: edit(f / "config.json", lambda c: c["talker_config"].update(codec_pad_id=5000)),
            "codec_pad_id is 5000; talker vocab_size is 1088",
        ),
        (
            lambda f: edit(f / "config.json", lambda c: c["talker_config"].update(num_code_groups=8)),
            "num_code_groups is 8, but the codec has 16",
        ),
        (
            lambda f: edit(
                f / "speech_tokenizer" / "config.json", lambda c: c.update(decode_upsample_rate=960)
            ),
            "decode_upsample_rate is 960",
        ),
        (
            lambda f: edit(
                f / "tokenizer_config.json",
                lambda c: c["added_tokens_decoder"].pop(next(iter(c["added_tokens_decoder"]))),
            ),
            "the two files are not of one checkpoint",
        ),
    ],
)
def test_a_broken_folder_is_refused_by_name(folder, damage, message):
    damage(folder)
    with pytest.raises(VoiceError, match=message):
        talker(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; give one of float32, bfloat16, float16"),
        ({"text_layout": "sideways"}, "text_layout is 'sideways'"),
        ({"talker_device": "abacus"}, "talker_device is 'abacus'; give cpu, cuda or cuda:<index>"),
        ({"reference_cache": -1}, "reference_cache is -1"),
        ({"speaker": ""}, "speaker is ''; give a non-empty string"),
        ({"colour": 1}, "unknown key 'colour'; known keys are dtype, codec_dtype"),
    ],
)
def test_wrong_options_are_refused(checkpoint, options, message):
    with pytest.raises(VoiceError, match=message):
        talker(checkpoint("1.7b custom_voice"), **options)


def test_generation_config_sets_the_defaults_and_may_be_missing(folder):
    edit(
        folder / "generation_config.json",
        lambda c: c.update(do_sample=False, top_k=7, subtalker_dosample=False, subtalker_top_p=0.5),
    )
    model = talker(folder)
    assert (model.defaults.temperature, model.defaults.top_k) == (0.0, 7)
    assert model.parameters["subtalker_temperature"].default == 0.0
    assert model.parameters["subtalker_top_p"].default == 0.5
    (folder / "generation_config.json").unlink()
    assert talker(folder).defaults.temperature == 0.9


def test_bfloat16_halves_the_state(checkpoint):
    folder = checkpoint("1.7b custom_voice")
    full, half = talker(folder), talker(folder, dtype="bfloat16")
    for model in (full, half):
        model.allocate(2, 512)
    assert half.slot_bytes() < 0.6 * full.slot_bytes()
    codes = speak(half, request(max_frames=4))
    assert codes.shape == (4, 16)
    sound = codec(folder, codec_dtype="bfloat16")
    sound.allocate(1)
    one = torch.ones(1, dtype=torch.int64)
    out = sound.decode(torch.tensor([0]), torch.from_numpy(codes)[None], 4 * one, one > 1)
    assert out.pcm.dtype == torch.float32
    assert torch.isfinite(out.pcm).all()


# Sizes of the published files in bytes: model.safetensors of CustomVoice in bfloat16, and
# speech_tokenizer/model.safetensors in float32.
@pytest.mark.parametrize(("size", "published"), [("0.6b", 1.81e9), ("1.7b", 3.83e9)])
def test_a_random_talker_is_as_large_as_the_published_one(tmp_path, size, published):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model_config(size, "custom_voice")))
    config = TalkerConfig.load(path)
    assert 2 * count(talker_tensors(config)) == pytest.approx(published, rel=0.003)
    assert config.projected == (size == "1.7b")


def test_a_random_codec_is_as_large_as_the_published_one(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(speech_tokenizer_config()))
    config = SpeechTokenizerConfig.load(path)
    numbers = count(decoder_tensors(config.decoder)) + count(encoder_tensors(config.encoder))
    assert 4 * numbers == pytest.approx(682e6, rel=0.003)


@pytest.mark.parametrize("name", ["qwen3-tts-0.6b", "qwen3-tts-1.7b"])
def test_make_random_writes_a_folder_that_the_shipped_voice_loads(tmp_path, name, capsys):
    assert make_random([name, str(tmp_path / "checkpoint"), "--tiny", "--style", "voice_design"]) == 0
    assert "wrote" in capsys.readouterr().out
    text = (VOICES / f"{name}.yaml").read_text()
    shipped = load_voice(VOICES / f"{name}.yaml")
    (tmp_path / "voice.yaml").write_text(
        text.replace(f"checkpoint: ../checkpoints/{name}", "checkpoint: checkpoint")
    )
    voice = load_voice(tmp_path / "voice.yaml")
    assert voice.checkpoint == tmp_path / "checkpoint"
    assert shipped.stream == voice.stream
    family = load_family(voice.family)
    assert family.load_talker(voice, CPU).spec == family.load_codec(voice, CPU).spec
    assert make_random([name, str(tmp_path / "checkpoint")]) == 1
    assert "is not empty" in capsys.readouterr().err

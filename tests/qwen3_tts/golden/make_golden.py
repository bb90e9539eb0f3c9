"""Make the golden files from the reference package qwen-tts 0.1.1, on tiny random checkpoints.

Run from the project's root in an overlay environment, since the package pins transformers 4.57.3:

    python -m venv overlay
    overlay/bin/pip install --no-deps qwen-tts==0.1.1 transformers==4.57.3 tokenizers==0.22.1 \
        huggingface_hub==0.36.0 numpy==1.26.4 safetensors pyyaml regex requests urllib3 idna certifi \
        charset-normalizer tqdm packaging filelock fsspec typing_extensions einops accelerate psutil \
        librosa scipy numba llvmlite soxr joblib cloudpickle msgpack pooch lazy_loader audioread \
        decorator soundfile cffi pycparser threadpoolctl platformdirs
    echo <site-packages of the project's environment> > overlay/lib/python3.11/site-packages/torch.pth
    overlay/bin/python -m tests.qwen3_tts.golden.make_golden

The checkpoints are written by the project's own `make-random`, whose bits do not depend on library versions;
the files hold only what the reference computes from them.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from backends.families.qwen3_tts.random_checkpoint import write_random_checkpoint
from bench.qwen3_overlay import load_reference
from tests.qwen3_tts.golden import cases

HERE = Path(__file__).resolve().parent


def _check_names(reference, folder: Path) -> None:
    """The package found all tensors that it has, and no others."""
    speech = reference.model.speech_tokenizer.model
    assert set(reference.model.state_dict()) == set(load_file(folder / "model.safetensors"))
    assert set(speech.state_dict()) == set(load_file(folder / "speech_tokenizer" / "model.safetensors"))


def _shapes(model: torch.nn.Module) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def _checksum(folder: Path) -> int:
    parts = [folder / "model.safetensors", folder / "speech_tokenizer" / "model.safetensors"]
    return zlib.crc32(b"".join(part.read_bytes() for part in parts))


def _talker_case(reference, case: cases.Case, out: dict[str, np.ndarray]) -> None:
    """Prompt embeddings, trailing text and greedy codes of one request."""
    talker = reference.model.talker
    captured: dict[str, torch.Tensor] = {}
    generate = talker.generate

    def capture(**arguments):
        captured["prompt"] = arguments["inputs_embeds"]
        captured["trailing"] = arguments["trailing_text_hidden"]
        return generate(**arguments)

    greedy = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": cases.FRAMES + 1}
    common = {"text": case.text, "language": case.language, "non_streaming_mode": case.whole, **greedy}
    head = talker.codec_head.weight.data[reference.model.config.talker_config.codec_eos_token_id]
    head.mul_(case.eos_gain)
    talker.generate = capture
    codes: list[torch.Tensor] = []
    decode = reference.model.speech_tokenizer.decode
    reference.model.speech_tokenizer.decode = lambda items: (
        codes.extend(item["audio_codes"] for item in items) or ([np.zeros(1, np.float32)], 24000)
    )
    if case.reference is not None:
        reference.generate_voice_clone(
            ref_audio=(cases.reference_audio(), 24000),
            ref_text=cases.REFERENCE_TEXT,
            x_vector_only_mode=case.reference == "x_vector",
            **common,
        )
    elif case.speaker is not None:
        reference.generate_custom_voice(speaker=case.speaker, instruct=case.instructions, **common)
    else:
        reference.generate_voice_design(instruct=case.instructions, **common)
    reference.model.speech_tokenizer.decode = decode
    talker.generate = generate
    head.div_(case.eos_gain)
    if case.embeddings:
        out[f"{case.name}.prompt"] = captured["prompt"][0].numpy()
        out[f"{case.name}.trailing"] = captured["trailing"][0].numpy()
    out[f"{case.name}.codes"] = codes[0].numpy().astype(np.int16)
    print(case.name, tuple(captured["prompt"].shape), tuple(captured["trailing"].shape), codes[0].shape)


def main() -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    talker: dict[str, np.ndarray] = {}
    codec: dict[str, np.ndarray] = {}
    names: dict[str, dict[str, list[int]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for checkpoint in dict.fromkeys(case.checkpoint for case in cases.CASES):
            size, style = checkpoint.split()
            folder = Path(temporary) / checkpoint.replace(" ", "-")
            write_random_checkpoint(folder, size, style, tiny=True, seed=cases.SEED)
            talker[f"checksum {checkpoint}"] = np.array([_checksum(folder)])
            reference = load_reference(folder)
            _check_names(reference, folder)
            names[checkpoint] = _shapes(reference.model)
            for case in cases.CASES:
                if case.checkpoint == checkpoint:
                    _talker_case(reference, case, talker)
            if style == "base":
                tokenizer = reference.model.speech_tokenizer
                names["speech_tokenizer"] = _shapes(tokenizer.model)
                audio = cases.reference_audio()
                item = reference.create_voice_clone_prompt((audio, 24000), cases.REFERENCE_TEXT)[0]
                codec["reference.codes"] = item.ref_code.numpy().astype(np.int16)
                codec["reference.x_vector"] = item.ref_spk_embedding.numpy()
                frames = torch.from_numpy(cases.codec_frames()).transpose(1, 2)
                decoded = tokenizer.model.decoder(frames)[:, 0]
                print("audio std", decoded.std(), "max", decoded.abs().max())
                # Every 7th sample: enough to see any difference, and small.
                codec["decoded"] = decoded[:, ::7].numpy()
                generated = torch.from_numpy(talker["in_context.codes"].astype(np.int64))
                waves, _ = tokenizer.decode([{"audio_codes": generated}])
                cut = int(item.ref_code.shape[0] / generated.shape[0] * waves[0].shape[0])
                codec["in_context.audio"] = waves[0][cut::7]
                for index, text in enumerate(cases.TOKEN_TEXTS):
                    ids = reference._tokenize_texts([reference._build_assistant_text(text)])[0]
                    codec[f"tokens.{index}"] = ids[0].numpy().astype(np.int32)
    np.savez_compressed(HERE / "talker.npz", **talker)
    np.savez_compressed(HERE / "codec.npz", **codec)
    (HERE / "tensors.json").write_text(json.dumps(names, indent=None, sort_keys=True) + "\n")
    for name in ("talker.npz", "codec.npz", "tensors.json"):
        print(name, (HERE / name).stat().st_size)


if __name__ == "__main__":
    main()

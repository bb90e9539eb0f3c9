"""The reference package qwen-tts 0.1.1, for comparison: loading it, and a worker that times it on request.

It pins transformers 4.57.3 and so needs an environment of its own; tests/qwen3_tts/golden/make_golden.py says
how to make one. `python -m bench.qwen3_overlay CHECKPOINT THREADS`, run by that environment's Python, answers
one JSON object a line: {"op": "talker", "batch": 1, "frames": 12} or {"op": "codec", "chunk": 4}.
"""

# The package is imported late, since what it needs has to be stubbed first.
# ruff: noqa: PLC0415

from __future__ import annotations

import importlib.machinery
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CONTEXT = 25
"""Frames before each chunk that the package's `chunked_decode` decodes again."""


def _stub_unused_imports() -> None:
    """The package imports these for its 25 Hz tokenizer, which is not used here."""
    # First, since it looks for optional packages and must not find the stubs.
    from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, MimiModel  # noqa: F401

    for name in ("sox", "onnxruntime", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        module: Any = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
    stubs: Any = sys.modules
    stubs["torchaudio"].compliance = stubs["torchaudio.compliance"]
    stubs["torchaudio.compliance"].kaldi = stubs["torchaudio.compliance.kaldi"]


def load_reference(folder: Path) -> Any:
    """The package's Qwen3TTSModel of a checkpoint folder, float32."""
    _stub_unused_imports()
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration, Qwen3TTSProcessor
    from qwen_tts.inference.qwen3_tts_model import Qwen3TTSModel
    from transformers import AutoConfig, AutoModel, AutoProcessor

    AutoConfig.register("qwen3_tts", Qwen3TTSConfig, exist_ok=True)
    AutoModel.register(Qwen3TTSConfig, Qwen3TTSForConditionalGeneration, exist_ok=True)
    AutoProcessor.register(Qwen3TTSConfig, Qwen3TTSProcessor, exist_ok=True)
    model = Qwen3TTSForConditionalGeneration.from_pretrained(str(folder), dtype=torch.float32)
    # fix_mistral_regex=True, which the package passes, would replace Qwen's own splitting rule when the
    # folder is local, but not when it comes from the hub; the published model's rule is Qwen's.
    processor = AutoProcessor.from_pretrained(str(folder), fix_mistral_regex=False)
    return Qwen3TTSModel(model.eval(), processor, model.generate_config)


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Processor time of this process and wall time of a call, in seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def _generate(reference: Any, text: str, batch: int, frames: int) -> None:
    """Codes of `batch` equal requests, made together; no audio."""
    config = reference.model.config.talker_config
    speaker = next(iter(config.spk_id))
    ids = reference._tokenize_texts([reference._build_assistant_text(text)]) * batch
    reference.model.generate(
        input_ids=ids,
        speakers=[speaker] * batch,
        languages=["english"] * batch,
        non_streaming_mode=True,
        # An id that is suppressed anyway: the run has the length asked for.
        eos_token_id=config.vocab_size - 1,
        max_new_tokens=frames + 1,
    )


def main(arguments: list[str]) -> int:
    folder, threads = Path(arguments[0]), int(arguments[1])
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    replies, sys.stdout = sys.stdout, sys.stderr  # the package prints
    reference = load_reference(folder)
    decoder = reference.model.speech_tokenizer.model.decoder
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["op"] == "talker":
            text, batch, frames = asked["text"], asked["batch"], asked["frames"]
            answer = timed(lambda: _generate(reference, text, batch, frames))  # noqa: B023
        else:
            codes = torch.randint(0, decoder.config.codebook_size, (1, 16, CONTEXT + asked["chunk"]))
            answer = timed(lambda: decoder(codes))  # noqa: B023
        print(json.dumps(answer), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Step 4: speech to codes and alignments.

    python -m voices.wren.training.prepare WORK

Writes WORK/examples-NN.npz for every shard of speech, with the encoder and the quantiser of
WORK/codec.safetensors.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch

from backends.families.wren.geometry import SAMPLES_PER_FRAME
from voices.wren.training import checkpoints
from voices.wren.training.alignments import Example, align, choose_cut, phones_of, save_examples
from voices.wren.training.codec_network import CodecNetwork
from voices.wren.training.speech import Speech, shards_in


@torch.inference_mode()
def prepare(speech: Speech, network: CodecNetwork, seed: int) -> list[Example]:
    """Examples of all usable utterances; those with phones that the voice does not have are left out."""
    rng = random.Random(seed)
    examples = []
    for index, utterance in enumerate(speech.utterances):
        try:
            segments = utterance.phones()
        except ValueError as error:
            print(error)
            continue
        audio = speech.audio(index)
        cut = choose_cut(segments, len(audio), rng)
        if cut is None:
            continue
        used = audio[cut.begin : cut.begin + cut.frames * SAMPLES_PER_FRAME]
        used = np.pad(used, (0, cut.frames * SAMPLES_PER_FRAME - len(used)))
        codes = network.quantiser.encode(network.encoder(torch.from_numpy(used)[None]))[0]
        examples.append(align(phones_of(segments), cut, codes.numpy()))
    return examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    options = parser.parse_args()
    network = CodecNetwork().eval()
    checkpoints.load(network, options.work / checkpoints.CODEC)
    for seed, shard in enumerate(shards_in(options.work)):
        examples = prepare(Speech([shard]), network, seed)
        path = options.work / f"{shard.name.replace('speech', 'examples')}.npz"
        save_examples(examples, path)
        print(f"{path}: {len(examples)} utterances, {sum(len(e.codes) for e in examples)} frames", flush=True)


if __name__ == "__main__":
    main()

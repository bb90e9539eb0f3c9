"""Makes tests/wren/goldens/reference.npz with the prototype that wren was made from.

    python tests/wren/goldens/make.py FOLDER_OF_THE_PROTOTYPE_S_SCRIPTS FOLDER_OF_ITS_WEIGHTS

The prototype (a script `tinyvoice.py` that loops over its streams in Python) is not part of this
project; it trained the voice's weights, and what it makes of a text defines what they mean. For every
sentence the file holds the phones (as feature rows) and the codes that the prototype draws greedily,
one stream alone, on one thread; for the first two also the first frames of audio, and the codes at two
rates of speech.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

SENTENCES = (
    "The birch canoe slid on the smooth planks.",
    "Could you tell me where the nearest train station is?",
    "Streaming speech should start quickly and never stop in the middle.",
    "It costs $23.50, or 15% less, at 5:30 on the 3rd of May 2024.",
    "Don't stop; we're nearly there!",
    "Hello.",
    "The teacher explained the problem twice, and then she asked a question.",
    "HTTP and JSON are used by the API.",
)
UNKNOWN_WORDS = (
    "blorptian zyxgrat quindle phlogistically shmerpish wug thrumble knackwurstig ghostlify xylophonist "
    "pneumatologue unthinkableness reorchestrate vroomster jabberwockian eelskinned ooze aardwolfish czarlet "
    "bdellovibrio mnemonicon psittacine tsunamical gnomonic whyever wrongfoot dumbfounder receiptless "
    "colonelcy yachtsmanlike bouquetry lingeriest subpoenaed rendezvoused segued"
)
SPEEDS = (0.7, 1.5)
AUDIO_FRAMES = 8


def main() -> None:
    scripts, weights = map(Path, sys.argv[1:])
    sys.path.insert(0, str(scripts))
    from talker import PID, phone_feats  # noqa: PLC0415
    from tinyvoice import ENDC, TinyVoice  # noqa: PLC0415

    torch.set_num_threads(1)
    voice = TinyVoice(str(weights))

    def codes(text: str, speed: float = 1.0) -> np.ndarray:
        stream = voice.open(text)
        frames = []
        while not stream.done:
            frame = voice.step([stream], speed=speed)[0]
            if frame is not None:
                frames.append(frame)
        return torch.stack(frames).numpy().astype(np.int16)

    arrays = {"sentences": np.array(SENTENCES)}
    for index, text in enumerate(SENTENCES):
        phones = voice.fe(text)
        columns = list(zip(*phones, strict=True))
        arrays[f"phones_{index}"] = np.array(
            phone_feats([PID[p] for p in columns[0]], columns[1], columns[2], [ENDC[e] for e in columns[3]]),
            np.int8,
        )
        arrays[f"codes_{index}"] = codes(text)
    words = UNKNOWN_WORDS.split()
    arrays["unknown_words"] = np.array(words)
    arrays["unknown_words_phones"] = np.array(
        [" ".join(phone.rstrip("012") for phone in voice.fe.word(word)) for word in words]
    )
    for index in range(2):
        frames = torch.from_numpy(arrays[f"codes_{index}"].astype(np.int64))[:AUDIO_FRAMES]
        latents = torch.stack([voice.cb[q][frames[:, q]] for q in range(8)]).sum(0)
        with torch.no_grad():
            arrays[f"audio_{index}"] = voice.dec(latents[None], voice.dec.init_state(1))[0][0].numpy()
        for speed in SPEEDS:
            arrays[f"codes_{index}_at_{speed}"] = codes(SENTENCES[index], speed)
    np.savez_compressed(Path(__file__).with_name("reference.npz"), **arrays)


if __name__ == "__main__":
    main()

"""Ways to run wren's talker and codec that the tests share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from backends.codec import Codec
from backends.noise import counter_noise, seed_key
from backends.talker import SamplingTable, SpeechRequest, StepFlag, Talker


def sampling_table(
    rows: int, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, speed: float = 1.0
) -> SamplingTable:
    return SamplingTable(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        repetition_penalty=torch.ones(rows),
        extra={"speed": torch.full((rows,), speed)},
    )


class Speaking:
    """Streams on a talker: prefilled together, stepped together, each with the noise of its own seed."""

    def __init__(self, talker: Talker, table: SamplingTable) -> None:
        self.talker = talker
        self.table = table
        self.frames: dict[int, list[torch.Tensor]] = {}
        self.seeds: dict[int, int] = {}
        self.running: list[int] = []

    def start(self, texts: dict[int, str], padding: int = 0) -> None:
        """Prefill texts by slot in one call, with `padding` more positions than the longest needs."""
        prompts = [
            self.talker.build_prompt(SpeechRequest(text), text, True).inputs for text in texts.values()
        ]
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        inputs = torch.zeros(
            len(prompts), int(lengths.max()) + padding, prompts[0].shape[1], dtype=torch.int64
        )
        for row, prompt in zip(inputs, prompts, strict=True):
            row[: len(prompt)] = prompt
        self.talker.prefill(torch.tensor(list(texts)), inputs, lengths, torch.zeros_like(lengths))
        for slot, text in texts.items():
            self.frames[slot] = []
            self.seeds[slot] = sum(text.encode())
            self.running.append(slot)

    def step(self, extra_null_rows: int = 0) -> None:
        """One step of all running slots; those that end stop running."""
        keys = np.array([seed_key(self.seeds[slot]) for slot in self.running], np.uint64)
        places = np.array([len(self.frames[slot]) for slot in self.running])
        noise = torch.from_numpy(counter_noise(keys, places, self.talker.noise.count))
        null = self.table.temperature.shape[0] - 1
        slots = torch.tensor(self.running + [null] * extra_null_rows)
        noise = torch.cat([noise, torch.full((extra_null_rows, noise.shape[1]), 0.5)])
        out = self.talker.step(slots, torch.zeros_like(slots), noise, self.table, 0)
        for slot, frame, flags in zip(tuple(self.running), out.raw, out.flags.tolist(), strict=False):
            assert flags & StepFlag.VALID
            self.frames[slot].append(frame)
            if flags & StepFlag.ENDED:
                self.running.remove(slot)

    def finish(self) -> dict[int, torch.Tensor]:
        while self.running:
            self.step()
        return self.codes()

    def codes(self) -> dict[int, torch.Tensor]:
        return {slot: torch.stack(frames) for slot, frames in self.frames.items()}


def speak(
    talker: Talker, table: SamplingTable, texts: dict[int, str], padding: int = 0
) -> dict[int, torch.Tensor]:
    """Codes [n, CODEBOOKS] of each slot's text."""
    speaking = Speaking(talker, table)
    speaking.start(texts, padding)
    return speaking.finish()


def decode(codec: Codec, slot: int, codes: torch.Tensor, cuts: Sequence[int] = ()) -> torch.Tensor:
    """Audio [samples] of codes [n, CODEBOOKS] in one slot, chunks ending at `cuts` and at the end."""
    slots = torch.tensor([slot])
    codec.open(slots)
    audio = []
    begin = 0
    for end in (*cuts, len(codes)):
        out = codec.decode(
            slots, codes[None, begin:end], torch.tensor([end - begin]), torch.tensor([end == len(codes)])
        )
        assert out.first.item() == begin * codec.spec.samples_per_frame
        assert out.count.item() == (end - begin) * codec.spec.samples_per_frame
        audio.append(out.pcm[0, 0])
        begin = end
    return torch.cat(audio)

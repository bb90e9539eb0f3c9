"""A talker whose prompts say what it shall do, for tests of the engine's rules."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from backends.frames import FrameSpec
from backends.talker import (
    NoiseSpec,
    ParameterSpec,
    Prompt,
    SamplingTable,
    SpeechRequest,
    StepFlag,
    StepOutput,
    Talker,
)

SPEC = FrameSpec("codes", 2, (1000, 1000), 16_000, 1, 160)
RAISE_IN_STEP, RAISE_IN_BATCH, RAISE_IN_PREFILL, FAIL, OUT_OF_RANGE, SILENT = range(1, 7)


@dataclass
class Call:
    """What one call of `step` or `prefill` got."""

    slots: list[int]
    length: int
    text: list[int] = field(default_factory=list)
    noise: list[list[float]] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    temperature: list[float] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)


class ScriptedTalker(Talker):
    """Frame n of a prompt is (n, mark). It records its calls in `steps` and `prefills`.

    ends_with_frame: the last frame's row carries ENDED; else an extra row without a frame does.
    """

    spec = SPEC
    noise = NoiseSpec(1)
    device = torch.device("cpu")

    def __init__(
        self, prefill_chunk: int | None = 64, ends_with_frame: bool = True, per_frame: bool = False
    ) -> None:
        self.prefill_chunk = prefill_chunk
        self.ends_with_frame = ends_with_frame
        self.text_mode = "per_frame" if per_frame else "full"
        self.parameters = {"speed": ParameterSpec(1.5, 0.5, 2.0, "of speech")}
        self.steps: list[Call] = []
        self.prefills: list[Call] = []

    def allocate(self, max_slots: int, max_length: int) -> None:
        self.null = max_slots
        self.script = torch.zeros(max_slots + 1, 3, dtype=torch.int64)  # frames to make, mark, what to do
        self.made = torch.zeros(max_slots + 1, dtype=torch.int64)

    def slot_bytes(self) -> int:
        return 32

    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        return self.prompt(int(text))

    @staticmethod
    def prompt(
        frames: int, mark: int = 0, action: int = 0, positions: int = 3, budget: int = 10_000
    ) -> Prompt:
        inputs = torch.zeros(positions, dtype=torch.int64)
        inputs[:3] = torch.tensor([frames, mark, action])
        return Prompt(inputs, budget)

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        self.prefills.append(Call(slots.tolist(), inputs.shape[1], begins=begins.tolist()))
        for slot, row, begin in zip(slots.tolist(), inputs, begins.tolist(), strict=True):
            if begin == 0:
                if row[2] == RAISE_IN_PREFILL:
                    raise RuntimeError("scripted prefill")
                self.script[slot] = row[:3]
                self.made[slot] = 0

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        real = slots != self.null
        self.steps.append(
            Call(
                slots[real].tolist(), length, text[real].tolist(), noise[real].tolist(),
                temperature=sampling.temperature[slots[real]].tolist(),
                speed=sampling.extra["speed"][slots[real]].tolist(),
            )
        )  # fmt: skip
        total, mark, action = self.script[slots].unbind(1)
        if (real & (action == RAISE_IN_STEP)).any() or (
            len(slots) > 1 and (real & (action == RAISE_IN_BATCH)).any()
        ):
            raise RuntimeError("scripted step")
        made = self.made[slots]
        self.made[slots] = made + 1
        raw = torch.stack([torch.where(action == OUT_OF_RANGE, 5000, made), mark], 1)
        last = made + 1 >= total if self.ends_with_frame else made >= total
        valid = (made < total) & (action != SILENT)
        flags = valid * StepFlag.VALID | (last & (action != SILENT)) * StepFlag.ENDED
        flags = torch.where(action == FAIL, StepFlag.FAILED, flags)
        return StepOutput(raw, flags.int())

"""Tiny random talkers, one for each way in which real families make frames. Their arithmetic is real: a
transformer over slots, per-row sampling, texts that end the speech at different lengths."""

from __future__ import annotations

import torch
from torch import nn

from backends.assemblers import DelayAssembler, TokenGroupAssembler
from backends.frames import FrameAssembler, FrameSpec
from backends.layers.backbone import Backbone, BackboneConfig
from backends.sampler import Sampler, healthy, penalise
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

HIDDEN = 16
TEXT_IDS = 128
CPU = torch.device("cpu")


class TinyTalker(Talker):
    """A backbone over slots; subclasses sample a row from its hidden state and embed it again.

    A prompt is the text's bytes. `*` in a text makes the stream's numbers go bad at its first step.
    """

    prefill_chunk = 8
    device = CPU

    def __init__(self, spec: FrameSpec, seed: int, window: int | None = None) -> None:
        self.spec = spec
        torch.manual_seed(seed)
        self.backbone = Backbone(
            BackboneConfig(
                hidden=HIDDEN, layers=2, heads=4, kv_heads=2, head_dim=4, intermediate=24, qk_norm=True,
                window=window,
            )
        )  # fmt: skip
        self.text = nn.Embedding(TEXT_IDS, HIDDEN)
        self.build()
        for module in vars(self).values():
            if isinstance(module, nn.Module):
                module.double().eval().requires_grad_(False)
        for parameter in self.backbone.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.4)

    def build(self) -> None:
        """Make the modules of the subclass."""
        raise NotImplementedError

    def allocate(self, max_slots: int, max_length: int) -> None:
        self.null = max_slots
        ring = self.backbone.config.window is not None
        self.cache = self.backbone.slot_cache(max_slots, max_length, ring)
        self.hidden = torch.zeros(max_slots + 1, HIDDEN, dtype=torch.float64)
        self.position = torch.zeros(max_slots + 1, dtype=torch.int64)
        self.steps = torch.zeros(max_slots + 1, dtype=torch.int64)

    def slot_bytes(self) -> int:
        return self.cache.slot_bytes() + 8 * (HIDDEN + 2)

    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        ids = torch.tensor(list(text.encode()), dtype=torch.int64)
        return Prompt(inputs=ids, max_frames=200)

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        starts = begins == 0
        self.cache.reset(slots, starts)
        offsets = torch.arange(inputs.shape[1])
        positions = begins[:, None] + offsets
        valid = offsets < lengths[:, None]
        y = self.backbone(self.text(inputs), positions, self.cache.view(slots, positions, valid))
        last = y[torch.arange(len(slots)), lengths - 1]
        poisoned = ((inputs == ord("*")) & valid).any(1)
        self.hidden[slots] = torch.where(poisoned[:, None], torch.nan, last)
        self.position[slots] = begins + lengths
        self.steps[slots] = 0

    def advance(self, slots: torch.Tensor, x: torch.Tensor, length: int) -> None:
        """Feed x [B, HIDDEN], the embedded row, and keep what the next step samples from."""
        position = self.position[slots][:, None]
        y = self.backbone(x[:, None], position, self.cache.view(slots, position, None, length))
        self.hidden[slots] = y[:, 0]
        # Counters last: a step that raised before may be repeated.
        self.position[slots] = position[:, 0] + 1
        self.steps[slots] = self.steps[slots] + 1


class CodeTalker(TinyTalker):
    """Whole frames of codes; the end is an extra id of codebook 0, on which no frame is made (Qwen3-TTS,
    CSM).

    Codebook 0 has a repetition penalty. per_frame: every step also takes a text id (Qwen3-Omni, MOSS
    Realtime).
    """

    def __init__(
        self, spec: FrameSpec, seed: int, per_frame: bool = False, window: int | None = None
    ) -> None:
        self.text_mode = "per_frame" if per_frame else "full"
        self.noise = NoiseSpec(spec.width)
        self.parameters = {"eagerness": ParameterSpec(0.0, -5.0, 5.0, "raises the chance of the end")}
        super().__init__(spec, seed, window)

    def build(self) -> None:
        self.heads = nn.ModuleList(
            nn.Linear(HIDDEN, size + (k == 0)) for k, size in enumerate(self.spec.sizes)
        )
        self.codes = nn.ModuleList(nn.Embedding(size + 1, HIDDEN) for size in self.spec.sizes)

    def allocate(self, max_slots: int, max_length: int) -> None:
        super().allocate(max_slots, max_length)
        self.seen = torch.zeros(max_slots + 1, self.spec.sizes[0] + 1, dtype=torch.bool)

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        super().prefill(slots, inputs, lengths, begins)
        self.seen.index_fill_(0, torch.where(begins == 0, slots, self.null), False)

    def text_to_ids(self, text: str) -> list[int]:
        return list(text.encode())

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        sampler = Sampler.of(sampling, slots)
        h = self.hidden[slots]
        good = healthy(h)
        h = torch.where(good[:, None], h, 0.0)
        x = torch.where(text[:, None] >= 0, self.text(text.clamp(min=0)), 0.1)
        seen = self.seen[slots]
        end = self.spec.sizes[0]
        drawn = []
        for k, (head, embedding) in enumerate(zip(self.heads, self.codes, strict=True)):
            logits = 3 * head(h + x)
            if k == 0:
                late = self.steps[slots] * 0.02 + sampling.extra["eagerness"][slots]
                logits[:, end] += late
                logits = penalise(logits, seen, sampling.repetition_penalty[slots])
            code = sampler.draw(logits, noise[:, k])
            drawn.append(code)
            x = x + embedding(code)
        self.seen[slots] = seen.scatter(1, drawn[0][:, None], True)
        self.advance(slots, x, length)
        flags = torch.where(drawn[0] == end, StepFlag.ENDED, StepFlag.VALID)
        flags = torch.where(good, flags, StepFlag.FAILED).int()
        return StepOutput(torch.stack(drawn, 1), flags)


class TokenTalker(TinyTalker):
    """One token a step, `spec.width` of them a frame, each place with ids of its own (Orpheus)."""

    noise = NoiseSpec(1)

    def build(self) -> None:
        self.end = sum(self.spec.sizes)
        self.head = nn.Linear(HIDDEN, self.end + 1)
        self.tokens = nn.Embedding(self.end + 1, HIDDEN)
        place = torch.repeat_interleave(torch.arange(self.spec.width), torch.tensor(self.spec.sizes))
        self.allowed = place == torch.arange(self.spec.width)[:, None]
        may_end = torch.arange(self.spec.width)[:, None] == 0
        self.allowed = torch.cat([self.allowed, may_end], 1)  # [place, token]

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        place = self.steps[slots] % self.spec.width
        logits = self.head(self.hidden[slots]).masked_fill(~self.allowed[place], -torch.inf)
        token = Sampler.of(sampling, slots).draw(logits, noise[:, 0])
        self.advance(slots, self.tokens(token), length)
        flags = torch.where(token == self.end, StepFlag.ENDED, StepFlag.VALID).int()
        return StepOutput(token[:, None], flags)

    def assembler(self) -> FrameAssembler:
        return TokenGroupAssembler(self.spec)


class DelayTalker(TinyTalker):
    """One code of every book a row, book k k rows late (MOSS-TTS Delay, Higgs v2).

    Ids past a book's size: size is the start mark, size + 1 the end mark. Once book 0 drew the end mark,
    one more book a row is forced to it; the row on which all have it ends the speech.
    """

    def __init__(self, spec: FrameSpec, seed: int) -> None:
        self.noise = NoiseSpec(spec.width)
        super().__init__(spec, seed)

    def build(self) -> None:
        self.size = self.spec.sizes[0]
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, self.size + 2) for _ in self.spec.sizes)
        self.codes = nn.ModuleList(nn.Embedding(self.size + 2, HIDDEN) for _ in self.spec.sizes)
        # Marks are never drawn, but for the end mark of book 0.
        self.marks = torch.zeros(self.size + 2)
        self.marks[self.size :] = -torch.inf
        self.marks_0 = self.marks.clone()
        self.marks_0[self.size + 1] = 0.5

    def allocate(self, max_slots: int, max_length: int) -> None:
        super().allocate(max_slots, max_length)
        self.ended = torch.zeros(max_slots + 1, dtype=torch.int64)  # books that have ended

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        super().prefill(slots, inputs, lengths, begins)
        self.ended[slots] = 0

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        sampler = Sampler.of(sampling, slots)
        h, step, ended = self.hidden[slots], self.steps[slots], self.ended[slots]
        row, x = [], torch.zeros_like(h)
        for k, (head, embedding) in enumerate(zip(self.heads, self.codes, strict=True)):
            logits = head(h) + (self.marks if k else self.marks_0)
            code = sampler.draw(logits, noise[:, k])
            code = torch.where(step < self.spec.delay[k], self.size, code)
            code = torch.where(k < ended, self.size + 1, code)
            row.append(code)
            x = x + embedding(code)
        raw = torch.stack(row, 1)
        ended = torch.where((ended > 0) | (raw[:, 0] == self.size + 1), ended + 1, 0)
        self.ended[slots] = ended
        self.advance(slots, x, length)
        flags = torch.where(ended > self.spec.width, StepFlag.ENDED, 0) | StepFlag.VALID
        return StepOutput(raw, flags.int())

    def assembler(self) -> FrameAssembler:
        return DelayAssembler(self.spec)


class LatentTalker(TinyTalker):
    """Float frames from a head that turns noise into a latent; an end logit starts a countdown
    (Pocket-TTS)."""

    frames_after_end = 2

    def __init__(self, spec: FrameSpec, seed: int) -> None:
        self.noise = NoiseSpec(spec.width, "normal")
        super().__init__(spec, seed)

    def build(self) -> None:
        width = self.spec.width
        self.flow = nn.Sequential(nn.Linear(HIDDEN + width, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, width))
        self.end = nn.Linear(HIDDEN, 1)
        self.latents = nn.Linear(width, HIDDEN)

    def allocate(self, max_slots: int, max_length: int) -> None:
        super().allocate(max_slots, max_length)
        # Frames left after the end logit; 0: it has not come.
        self.left = torch.zeros(max_slots + 1, dtype=torch.int64)

    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        super().prefill(slots, inputs, lengths, begins)
        self.left[slots] = 0

    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        h = self.hidden[slots]
        scaled = noise * sampling.temperature[slots].sqrt()[:, None]
        latent = scaled + self.flow(torch.cat([h, scaled.double()], 1))
        left = self.left[slots]
        starts = (left == 0) & (self.end(h)[:, 0] > 0.4) & (self.steps[slots] > 4)
        last = left == 1
        self.left[slots] = torch.where(starts, self.frames_after_end, (left - 1).clamp(min=0))
        self.advance(slots, self.latents(latent), length)
        flags = torch.where(last, StepFlag.ENDED, 0) | StepFlag.VALID
        return StepOutput(latent.float(), flags.int())

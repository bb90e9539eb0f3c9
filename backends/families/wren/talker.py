"""wren's talker as the talker engine runs it: phones to codes over slots."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from backends.families.wren.backbone import SteppingBackbone
from backends.families.wren.depth import SteppingDepth
from backends.families.wren.drawing import CodeDraw
from backends.families.wren.durations import MedianDurations
from backends.families.wren.frontend import Frontend
from backends.families.wren.geometry import CODEBOOKS, FRAME_SPEC, LATENT_SIZE, TICKS_PER_FRAME
from backends.families.wren.linear import MINIMUM_ROWS, column_major
from backends.families.wren.network import TalkerNetwork
from backends.families.wren.phone_encoder import PHONE_WIDTH
from backends.families.wren.step_input import BACKBONE_WIDTH, LOOK_AHEAD, FusedStepInput
from backends.talker import (
    NoiseSpec,
    ParameterSpec,
    Prompt,
    SamplingParameters,
    SamplingTable,
    SpeechRequest,
    StepFlag,
    StepOutput,
    Talker,
)

SPEED = ParameterSpec(
    default=1.0,
    minimum=0.5,
    maximum=2.0,
    meaning="nudges the rate of speech: 0.5 lengthens speech by about a tenth, 2 shortens it by a fourteenth",
)


class WrenTalker(Talker):
    """A step decides which phones sound in the next frame, runs the backbone and draws the frame's codes.

    State a slot: `phones` [max_length + LOOK_AHEAD, PHONE_WIDTH], the encoded text; the backbone's
    rings; `floats`: hidden state, last latent, survival of the phone that sounds; `integers`: position
    in frames, pointer into the phones, ticks since that phone began, length of the text.
    """

    spec = FRAME_SPEC
    noise = NoiseSpec(CODEBOOKS)
    defaults = SamplingParameters(temperature=0.7, top_k=20)

    def __init__(
        self,
        network: TalkerNetwork,
        codewords: torch.Tensor,
        frontend: Frontend,
        device: torch.device,
    ) -> None:
        """codewords: float32 [CODEBOOKS, CODEBOOK_SIZE, LATENT_SIZE]."""
        self.parameters = {"speed": SPEED}
        self.device = device
        self.frontend = frontend
        network = network.to(device).eval().requires_grad_(False)
        column_major(network)
        codewords = codewords.to(device)
        self.latent_scale = latent_scale = float(codewords[0].std())
        self.phone_encoder = network.phone_encoder
        self.step_input = FusedStepInput(network.step_input, latent_scale)
        self.backbone = SteppingBackbone(network.backbone)
        self.alignment = network.alignment
        self.depth = SteppingDepth(network.depth, codewords, latent_scale)
        self.durations = MedianDurations(device)
        # Of the columns of `Pointers.ticks`, those whose phones a step reads: the ticks, then the
        # pointer.
        self.read_columns = torch.arange(TICKS_PER_FRAME + LOOK_AHEAD, device=device).clamp(
            max=TICKS_PER_FRAME
        )
        self.read_offsets = (
            torch.arange(TICKS_PER_FRAME + LOOK_AHEAD, device=device) - TICKS_PER_FRAME
        ).clamp(min=0)
        self.allocate(0, 1)

    def allocate(self, max_slots: int, max_length: int) -> None:
        rows = max_slots + 1
        self.null_slot = torch.tensor([max_slots], device=self.device)
        self.max_length = max_length
        self.phones = torch.zeros(rows, max_length + LOOK_AHEAD, PHONE_WIDTH, device=self.device)
        self.floats = torch.zeros(rows, BACKBONE_WIDTH + LATENT_SIZE + 1, device=self.device)
        self.integers = torch.zeros(rows, 4, dtype=torch.int64, device=self.device)
        self.backbone.allocate(max_slots)

    def slot_bytes(self) -> int:
        states = (self.phones, self.floats, self.integers)
        rings = self.backbone.rings.nbytes // self.phones.shape[0]
        return sum(state[0].nbytes for state in states) + rings

    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        prompt = self.frontend.prompt(request, text)
        count = prompt.inputs.shape[0]
        if count > self.max_length:
            raise ValueError(
                f"a sentence of {len(text)} characters makes {count} phones; the limit is {self.max_length} "
                "(engine.max_length): end sentences sooner, or spell fewer letters and digits"
            )
        return prompt

    def positions(self, prompt: Prompt, frames: int) -> int:
        """Only the phones grow with the text; the backbone's window does not."""
        return prompt.inputs.shape[0]

    @torch.inference_mode()
    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        """Encode the phones and run the begin step. inputs: int64 [B, P, 6]."""
        count = min(inputs.shape[1], self.max_length)
        phones = F.pad(self.phone_encoder(inputs[:, :count], lengths), (0, 0, 0, LOOK_AHEAD))
        self.phones[:, : count + LOOK_AHEAD].index_copy_(0, slots, phones)

        rows = slots.shape[0]
        slots = self._filled_up(slots)
        self.backbone.clear(slots)
        x = self.step_input.begin(self.phones[:, :LOOK_AHEAD].index_select(0, slots))
        position = torch.zeros_like(slots)
        hidden = self.backbone(slots, x, position)
        self.floats.index_fill_(0, slots, 0)
        self.floats[:, :BACKBONE_WIDTH].index_copy_(0, slots, hidden)
        self.floats[:, -1].index_fill_(0, slots, 1.0)
        integers = position.new_zeros(slots.shape[0], 4)
        integers[:, 0] = 1
        integers[:rows, 3] = lengths
        self.integers.index_copy_(0, slots, integers)

    @torch.inference_mode()
    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        rows = slots.shape[0]
        slots = self._filled_up(slots)
        noise = F.pad(noise, (0, 0, 0, slots.shape[0] - rows), value=0.5)
        hidden, latent, survival = self.floats.index_select(0, slots).split(
            [BACKBONE_WIDTH, LATENT_SIZE, 1], 1
        )
        position, pointer, elapsed, phones = self.integers.index_select(0, slots).unbind(1)
        speed = sampling.extra["speed"].index_select(0, slots)
        after = self.durations.advance(
            self.alignment(hidden).softmax(1),
            survival=survival[:, 0],
            speed=speed,
            pointer=pointer,
            elapsed=elapsed,
            phones=phones,
        )
        read = after.ticks.index_select(1, self.read_columns) + self.read_offsets
        vectors = self.phones.view(-1, PHONE_WIDTH).index_select(
            0, (read + slots[:, None] * self.phones.shape[1]).flatten()
        )
        x = self.step_input(vectors.view(slots.shape[0], -1), after.elapsed, latent)
        hidden = self.backbone(slots, x, position)
        healthy = torch.isfinite(hidden.sum(1))
        hidden = torch.where(healthy[:, None], hidden, 0.0)
        codes, latent = self.depth.draw(hidden, CodeDraw.of(sampling, slots, noise))

        pointer = after.ticks[:, -1]
        self.floats.index_copy_(0, slots, torch.cat([hidden, latent, after.survival[:, None]], 1))
        self.integers.index_copy_(
            0, slots, torch.stack([position + 1, pointer, after.elapsed[:, -1], phones], 1)
        )
        ended = pointer >= phones
        flags = torch.where(ended, int(StepFlag.VALID | StepFlag.ENDED), int(StepFlag.VALID))
        flags.masked_fill_(~healthy, int(StepFlag.FAILED))
        return StepOutput(raw=codes[:rows], flags=flags[:rows].int())

    def _filled_up(self, slots: torch.Tensor) -> torch.Tensor:
        """Slots with null slots appended up to MINIMUM_ROWS, for products that do not depend on the
        batch."""
        missing = MINIMUM_ROWS - slots.shape[0]
        return slots if missing <= 0 else torch.cat([slots, self.null_slot.expand(missing)])

"""Qwen3-TTS's talker as the talker engine runs it: one step makes one frame of 16 codes for every row.

A step draws code 0 from the backbone's last state, the code predictor draws the other 15, and the sum of
their embeddings and of one further text token goes through the backbone. See `prompts.py` for what comes
before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from backends.families.qwen3_tts.config import TalkerConfig
from backends.families.qwen3_tts.network import TalkerNetwork
from backends.families.qwen3_tts.prompts import PromptBuilder
from backends.families.qwen3_tts.tokenizer import TextTokenizer
from backends.frames import FrameSpec
from backends.sampler import Sampler, healthy, penalise
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

RESERVED_CODES = 1024
"""Ids at the end of the talker's codec vocabulary that are never spoken, but for the end code."""
_SHORTEST = 2
"""Frames before which the end code is not allowed (`min_new_tokens` of the reference)."""
_PREFILL_CHUNK = 256
_PREFILL_LENGTHS = 64


@dataclass(frozen=True)
class PublishedDefaults:
    """What `generation_config.json` says, or else the defaults of the package."""

    sampling: SamplingParameters
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float
    max_frames: int


class Qwen3Talker(Talker):
    """network: with its weights, on its device.

    State of a slot: key/value cache, the backbone's last output, which codes 0 were seen, and some counters.
    """

    text_mode: Literal["full", "per_frame"] = "per_frame"
    prefill_chunk = _PREFILL_CHUNK

    def __init__(
        self,
        *,
        config: TalkerConfig,
        network: TalkerNetwork,
        tokenizer: TextTokenizer,
        prompts: PromptBuilder,
        spec: FrameSpec,
        published: PublishedDefaults,
    ) -> None:
        self.spec = spec
        self.network = network
        self.device = network.device
        self.noise = NoiseSpec(config.codebooks)
        self.defaults = published.sampling
        self.parameters: Mapping[str, ParameterSpec] = {
            "subtalker_temperature": ParameterSpec(
                published.predictor_temperature, 0.0, 5.0, "temperature of codes 1 to 15; 0 is greedy"
            ),
            "subtalker_top_k": ParameterSpec(
                float(published.predictor_top_k), 0.0, 1e6, "top-k of codes 1 to 15; 0 is off"
            ),
            "subtalker_top_p": ParameterSpec(
                published.predictor_top_p, 1e-6, 1.0, "top-p of codes 1 to 15; 1 is off"
            ),
        }
        self.speakers = tuple(config.speakers)
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._ids = config.ids
        vocabulary = torch.arange(config.codec_vocab, device=self.device)
        self._end = vocabulary == config.ids.codec_eos
        self._forbidden = (vocabulary >= config.codec_vocab - RESERVED_CODES) & ~self._end
        self._longest = 0  # positions a prompt may take, known once the state is allocated

    # State.

    def allocate(self, max_slots: int, max_length: int) -> None:
        rows, device = max_slots + 1, self.device
        self._longest = max_length - 1
        self._cache = self.network.backbone.slot_cache(max_slots, max_length)
        codes = self.network.codec_embedding.weight
        self._hidden = torch.zeros(rows, codes.shape[1], device=device, dtype=codes.dtype)
        self._seen = torch.zeros(rows, codes.shape[0], device=device, dtype=torch.bool)
        # Position of the next frame in the cache; frames made; whether the text's end was fed; whether
        # numbers went bad, which only clears with the cache.
        self._position = torch.zeros(rows, device=device, dtype=torch.int64)
        self._frames = torch.zeros(rows, device=device, dtype=torch.int64)
        self._text_over = torch.zeros(rows, device=device, dtype=torch.bool)
        self._failed = torch.zeros(rows, device=device, dtype=torch.bool)

    def slot_bytes(self) -> int:
        state = (
            self._hidden,
            self._seen,
            self._position,
            self._frames,
            self._text_over,
            self._failed,
        )
        return self._cache.slot_bytes() + sum(t[0].numel() * t.element_size() for t in state)

    # Text, on the host.

    def build_prompt(self, request: SpeechRequest, text: str, first: bool) -> Prompt:
        with torch.inference_mode():
            prompt = self._prompts.build(request, text, first)
        taken = len(prompt.inputs)
        if self._longest and taken > self._longest:
            raise ValueError(
                f"text, instructions and reference take {taken} positions before the first frame; the limit is "
                f"{self._longest} (engine.max_length of the voice, less one): shorten them or raise it"
            )
        return prompt

    def text_ready(self, request: SpeechRequest, text: str, first: bool) -> int:
        return self._prompts.text_ready(request, text, first)

    def text_to_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    # The model.

    @torch.inference_mode()
    def prefill(
        self, slots: torch.Tensor, inputs: torch.Tensor, lengths: torch.Tensor, begins: torch.Tensor
    ) -> None:
        ends = begins + lengths
        spoilt = self._failed[slots] & (begins == 0)
        longest, any_spoilt = torch.stack([ends.max(), spoilt.any().long()]).tolist()
        if any_spoilt:
            self._cache.reset(slots[spoilt])
        offsets = torch.arange(inputs.shape[1], device=self.device)
        positions = begins[:, None] + offsets
        # Attention reads as much of the cache as is used, in steps, so that few shapes occur.
        length = min(-(-longest // _PREFILL_LENGTHS) * _PREFILL_LENGTHS, self._cache.length)
        view = self._cache.view(slots, positions, offsets < lengths[:, None], length)
        y = self.network.backbone(inputs.to(self._hidden.dtype), positions, view)
        rows = torch.arange(len(slots), device=self.device)
        self._hidden.index_copy_(0, slots, y[rows, lengths - 1])
        self._position.index_copy_(0, slots, ends)
        for state in (self._seen, self._frames, self._text_over, self._failed):
            state.index_fill_(0, slots, 0)

    @torch.inference_mode()
    def step(
        self,
        slots: torch.Tensor,
        text: torch.Tensor,
        noise: torch.Tensor,
        sampling: SamplingTable,
        length: int,
    ) -> StepOutput:
        network, ids = self.network, self._ids
        hidden, made = self._hidden[slots], self._frames[slots]

        logits = penalise(network.head(hidden).float(), self._seen[slots], sampling.repetition_penalty[slots])
        forbidden = self._forbidden | (self._end & (made < _SHORTEST)[:, None])
        first = Sampler.of(sampling, slots).draw(logits.masked_fill(forbidden, -torch.inf), noise[:, 0])
        predictor = Sampler(
            sampling.extra["subtalker_temperature"][slots],
            sampling.extra["subtalker_top_k"][slots].long(),
            sampling.extra["subtalker_top_p"][slots],
        )
        codes, frame = network.predictor(hidden, network.codec_embedding(first), predictor, noise[:, 1:])

        # Text, then its end mark once, then padding.
        over = self._text_over[slots]
        text = torch.where(text >= 0, text, torch.where(over, ids.text_pad, ids.text_eos))
        over = over | (text == ids.text_eos) | (text == ids.text_pad)
        x = (frame + network.embed_text(text))[:, None]
        position = self._position[slots]
        positions = position[:, None]
        y = network.backbone(x, positions, self._cache.view(slots, positions, length=length))[:, 0]

        good = healthy(logits) & healthy(y)
        flags = torch.where(first == ids.codec_eos, int(StepFlag.ENDED), int(StepFlag.VALID))
        flags = torch.where(good, flags, int(StepFlag.FAILED)).to(torch.int32)
        # State last: a step that raised before may be repeated.
        self._hidden.index_copy_(0, slots, y)
        self._seen.view(-1).index_fill_(0, slots * self._seen.shape[1] + first, True)
        self._position.index_copy_(0, slots, position + 1)
        self._frames.index_copy_(0, slots, made + 1)
        self._text_over.index_copy_(0, slots, over)
        self._failed.index_copy_(0, slots, self._failed[slots] | ~good)
        return StepOutput(raw=torch.cat([first[:, None], codes], dim=1), flags=flags)

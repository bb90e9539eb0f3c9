"""Speaks a text in this process and decodes its codes in one call: what streamed audio must be equal to."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from backends.codec import Codec
from backends.family import load_family
from backends.graphs import capture_for
from backends.serving.requests import read_speech
from backends.talker import Talker
from backends.talker_engine import SpeechStream, TalkerEngine
from backends.text.segments import split_text
from backends.voice import VoiceConfig, load_voice


class WholeDecoder:
    """A voice's talker and codec without a server; one stream at a time, on the CPU."""

    def __init__(self, voice_file: Path) -> None:
        voice = load_voice(voice_file)
        self.voice: VoiceConfig = replace(voice, engine=replace(voice.engine, max_slots=1, threads=1))
        torch.set_num_threads(1)  # as in the server's model processes; more only fight over the cores
        device = torch.device("cpu")
        family = load_family(voice.family)
        self.talker: Talker = family.load_talker(self.voice, device)
        self.codec: Codec = family.load_codec(self.voice, device)
        self._engine = TalkerEngine(self.talker, self.voice.engine, capture=capture_for(device))
        self._engine.warm_up(lambda done, total: None)
        self.codec.allocate(1)

    def frames(self, text: str, **parameters: Any) -> torch.Tensor:
        """All frames [n, width] of a text, with the request parameters that a client would send."""
        inputs = {"target_text": np.array([[text.encode()]], np.object_)}
        speech = read_speech(inputs, parameters, self.voice, self.talker).request
        pieces = split_text(text, self.voice.segment_chars)
        prompts = deque(self.talker.build_prompt(speech, piece, i == 0) for i, piece in enumerate(pieces))
        stream = SpeechStream(speech, prompts=prompts, more_prompts=False, text_ended=True)
        self._engine.admit(stream)
        made = []
        while stream.finish_reason is None:
            step = self._engine.step()
            made.append(step.frames)
            for _, _, error in step.ended:
                if error is not None:
                    raise error
        return torch.from_numpy(np.concatenate(made))

    @torch.inference_mode()
    def decode(self, frames: torch.Tensor) -> npt.NDArray[np.float32]:
        """The audio of all frames by one codec call: float32 [n], or [n, channels]."""
        slot = torch.tensor([0])
        self.codec.open(slot)
        dtype = torch.int64 if self.codec.spec.kind == "codes" else torch.float32
        output = self.codec.decode(
            slot, frames[None].to(dtype), torch.tensor([len(frames)]), torch.tensor([True])
        )
        self.codec.close(slot)
        audio: npt.NDArray[np.float32] = output.pcm[0, :, : int(output.count[0])].numpy().T.copy()
        return audio[:, 0] if audio.shape[1] == 1 else audio

"""From a reference recording to what a prompt needs of it: x-vector and codes, kept for later prompts."""

from __future__ import annotations

import hashlib
import wave
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from backends.families.qwen3_tts.reference_audio import resample
from backends.families.qwen3_tts.reference_encoder import ReferenceEncoder
from backends.families.qwen3_tts.speaker_encoder import SpeakerEncoder
from backends.voice import VoiceError


@dataclass(frozen=True)
class Reference:
    """A recording and, for in-context cloning, its text. audio: float32 [samples] mono at `rate` Hz."""

    audio: np.ndarray
    rate: int
    text: str | None


@dataclass(frozen=True)
class ReferenceVoice:
    """x_vector: float32 [talker hidden size]. codes: int64 [frames, codebooks], None if not asked for."""

    x_vector: torch.Tensor
    codes: torch.Tensor | None


class ReferenceReader:
    """Encodes references and keeps the last `kept` results."""

    def __init__(self, speaker: SpeakerEncoder, encoder: ReferenceEncoder, kept: int) -> None:
        self._speaker = speaker
        self._encoder = encoder
        self._kept = kept
        self._known: OrderedDict[tuple[bytes, bool], ReferenceVoice] = OrderedDict()

    def frames(self, reference: Reference) -> int:
        """Codec frames that `read` will find, without reading."""
        samples = -(-len(reference.audio) * self._speaker.sizes.sample_rate // reference.rate)
        return -(-samples // self._encoder.config.samples_per_frame)

    @torch.inference_mode()
    def read(self, reference: Reference) -> ReferenceVoice:
        """Raises ValueError if the recording is too short."""
        digest = hashlib.sha256(reference.audio.tobytes() + reference.rate.to_bytes(4, "little")).digest()
        key = (digest, reference.text is not None)
        voice = self._known.get(key)
        if voice is None:
            voice = self._encode(reference)
            self._known[key] = voice
            if len(self._known) > self._kept:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return voice

    def _encode(self, reference: Reference) -> ReferenceVoice:
        rate = self._speaker.sizes.sample_rate
        audio = torch.from_numpy(resample(reference.audio, reference.rate, rate))
        if len(audio) < self._speaker.shortest:
            raise ValueError(
                f"reference_wav lasts {len(audio) / rate:.3f} s; a voice needs at least "
                f"{self._speaker.shortest / rate:.3f} s, and about 3 s to be recognisable"
            )
        codes = None if reference.text is None else self._encoder(audio).cpu()
        return ReferenceVoice(self._speaker(audio).cpu(), codes)


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """(float32 [samples] mono, rate) of a 16-bit PCM WAV file. Raises VoiceError."""
    try:
        with wave.open(str(path), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise VoiceError(f"{path}: is not a readable WAV file ({error})") from error
    if width != 2:
        raise VoiceError(f"{path}: has {8 * width}-bit samples; convert it to 16-bit PCM")
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    return samples.reshape(-1, channels).mean(1, dtype=np.float32), rate

"""A voice: one YAML file under `voices/`, checked once when it is read and trusted afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from chunk_policies import ChunkSchedule


class VoiceError(ValueError):
    """A voice's YAML or checkpoint is wrong; the message names file, key, value and the way out."""


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of the two engines.

    max_slots: streams that a talker speaks at once. queue: streams that may wait for a slot; more are
        refused.
    max_length: positions of talker state a slot (prompt and frames of one piece of text).
    talker_batch_buckets, codec_batch_buckets: row counts that calls are padded to and graphs are made for.
    length_buckets: cache lengths that talker graphs are made for; () doubles from 128 up to max_length. The
        last one is the limit of a piece of text.
    codec_slots: streams with decoder state; 0 means as many as talker slots plus those whose last chunks may
        still be on the way. codec_memory_mb: MiB that this state may take; fewer slots are made if they do
        not fit (MOSS needs 162 MB a stream); 0 is no limit.
    credit: chunks of one stream that may be on the way from talker to codec.
    threads: CPU threads of each model process; 0 leaves the choice to torch.
    compile: back end of torch.compile ("inductor") that captured calls are put through; slower to start, and
        "" is off.
    """

    max_slots: int = 16
    queue: int = 16
    max_length: int = 1024
    talker_batch_buckets: tuple[int, ...] = (1, 2, 4, 8, 16)
    codec_batch_buckets: tuple[int, ...] = (1, 2, 4, 8, 16)
    length_buckets: tuple[int, ...] = ()
    codec_slots: int = 0
    codec_memory_mb: int = 0
    credit: int = 4
    threads: int = 0
    compile: str = ""

    def __post_init__(self) -> None:
        for name in ("max_slots", "max_length", "credit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("queue", "codec_slots", "codec_memory_mb", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("talker_batch_buckets", "codec_batch_buckets", "length_buckets"):
            buckets = getattr(self, name)
            if any(b < 1 for b in buckets) or list(buckets) != sorted(set(buckets)):
                raise ValueError(f"{name} is {list(buckets)}; give positive sizes in rising order")
        if not self.talker_batch_buckets or not self.codec_batch_buckets:
            raise ValueError("talker_batch_buckets and codec_batch_buckets need at least one size each")


@dataclass(frozen=True)
class LimitConfig:
    """What one request may ask for. Times in seconds, texts in characters.

    max_seconds: longest audio of one stream, also the default of the request parameter of that name.
    idle_seconds: a stream whose text was left open ends after that long without text.
    stalled_seconds: a stream whose client does not take its audio is dropped after that long.
    stuck_seconds: a model process whose loop is silent for that long counts as dead; above its longest call.
    max_reference_seconds: longest reference audio.
    """

    max_text_chars: int = 20_000
    max_seconds: float = 900.0
    idle_seconds: float = 30.0
    stalled_seconds: float = 60.0
    stuck_seconds: float = 4.0
    max_reference_seconds: float = 30.0

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if not getattr(self, f.name) > 0:
                raise ValueError(f"{f.name} is {getattr(self, f.name)}; it must be above 0")


@dataclass(frozen=True)
class VoiceConfig:
    """A voice as its YAML states it.

    family: module under backends/families. checkpoint: file or folder of the weights.
    segment_chars: long text is cut at sentences into pieces of at most about that many characters.
    sampling: overrides of the family's defaults (temperature, top_k, top_p, repetition_penalty, ...).
    options: keys that only the family knows.
    """

    name: str
    family: str
    checkpoint: Path
    source: Path
    description: str = ""
    segment_chars: int = 300
    stream: ChunkSchedule = field(default_factory=lambda: ChunkSchedule.from_mapping({}))
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    sampling: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


Section = TypeVar("Section", EngineConfig, LimitConfig)


def _section(kind: type[Section], mapping: Mapping[str, Any], where: str) -> Section:
    """Build a configuration dataclass from a YAML mapping; every key must be a field of the right type."""
    values: dict[str, Any] = {}
    defaults = kind()
    for key, given in mapping.items():
        value: Any = given
        if key not in {f.name for f in dataclasses.fields(kind)}:
            known = ", ".join(f.name for f in dataclasses.fields(kind))
            raise VoiceError(f"{where}: unknown key {key!r}; known keys are {known}")
        default = getattr(defaults, key)
        if isinstance(default, tuple):
            if not isinstance(value, list) or not all(type(v) is int for v in value):
                raise VoiceError(f"{where}: {key} is {value!r}; give a list of integers")
            value = tuple(value)
        elif isinstance(default, float):
            if type(value) not in (int, float):
                raise VoiceError(f"{where}: {key} is {value!r}; give a number")
            value = float(value)
        elif type(value) is not type(default):
            raise VoiceError(f"{where}: {key} is {value!r}; give {type(default).__name__}")
        values[key] = value
    try:
        return kind(**values)
    except ValueError as error:
        raise VoiceError(f"{where}: {error}") from error


def load_voice(path: Path) -> VoiceConfig:
    """Read and check a voice's YAML. Raises VoiceError (also if the file is missing or is not YAML)."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VoiceError(f"{path}: cannot be read ({error.strerror}); give a file under voices/") from error
    except yaml.YAMLError as error:
        raise VoiceError(f"{path}: is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise VoiceError(f"{path}: holds {type(document).__name__}; a voice is a mapping of keys")
    known = {f.name for f in dataclasses.fields(VoiceConfig)} - {"source"}
    for key in document:
        if key not in known:
            raise VoiceError(f"{path}: unknown key {key!r}; known keys are {', '.join(sorted(known))}")
    for key in ("name", "family", "checkpoint"):
        if not isinstance(document.get(key), str) or not document[key]:
            raise VoiceError(f"{path}: {key} is {document.get(key)!r}; give a non-empty string")
    sections = {}
    for key in ("stream", "engine", "limits", "sampling", "options"):
        sections[key] = document.get(key) or {}
        if not isinstance(sections[key], dict):
            raise VoiceError(f"{path}: {key} is {document[key]!r}; give a mapping")
    segment_chars = document.get("segment_chars", 300)
    if type(segment_chars) is not int or segment_chars < 20:
        raise VoiceError(f"{path}: segment_chars is {segment_chars!r}; give an integer of at least 20")
    try:
        stream = ChunkSchedule.from_mapping(sections["stream"], source=f"{path}: stream")
    except ValueError as error:
        raise VoiceError(str(error)) from error
    return VoiceConfig(
        name=document["name"],
        family=document["family"],
        checkpoint=(path.parent / Path(document["checkpoint"]).expanduser()).resolve(),
        source=path,
        description=str(document.get("description", "")),
        segment_chars=segment_chars,
        stream=stream,
        engine=_section(EngineConfig, sections["engine"], f"{path}: engine"),
        limits=_section(LimitConfig, sections["limits"], f"{path}: limits"),
        sampling=dict(sections["sampling"]),
        options=dict(sections["options"]),
    )

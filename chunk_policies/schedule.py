"""The one configuration of chunk sizes that the orchestrator and the codec's warm-up both read."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from chunk_policies.adaptive import AdaptiveChunkPolicy, AdaptiveSettings
from chunk_policies.initial import dynamic_initial_size, dynamic_initial_sizes
from chunk_policies.policy import ChunkPolicy
from chunk_policies.scheduled import ScheduledLeftContextChunkPolicy

DEFAULT_STEADY_FRAMES = 15
DEFAULT_SAFETY_MARGIN_MS = 50.0
MAX_FRAMES = 10_000
MAX_RAMP_ENTRIES = 64
MAX_RAMP_TEXT = 1024

VOICE_KEYS = (
    "codec_chunk_frames",
    "initial_codec_chunk_frames",
    "initial_codec_chunk_dynamic",
    "codec_left_context_frames",
    "codec_chunk_ramp",
    "codec_chunk_adaptive",
    "codec_chunk_min_frames",
    "codec_chunk_safety_margin_ms",
)
REQUEST_KEYS = (
    "codec_chunk_frames",
    "initial_codec_chunk_frames",
    "codec_chunk_ramp",
    "codec_chunk_adaptive",
)


class ScheduleError(ValueError):
    """A chunk setting that cannot be used; the message names source, key, value, limit and way out."""


@dataclass(frozen=True)
class ChunkSchedule:
    """Which chunk sizes a voice's streams use. Built once with :meth:`from_mapping`, then only read.

    Attributes:
        steady: frames of every chunk after the first ones (``codec_chunk_frames``).
        initial: frames of the first chunk when no ramp is on; 0 for none (``initial_codec_chunk_frames``).
        initial_dynamic: choose the first chunk by load instead (``initial_codec_chunk_dynamic``).
        left_context: most context frames in the window of a windowed codec (``codec_left_context_frames``).
        ramp: sizes of the first chunks; empty when the ramp is off (``codec_chunk_ramp``).
        adaptive: choose each chunk by buffer feedback (``codec_chunk_adaptive``); wins over ``ramp``, which
            then only adds its sizes to the ladder.
        min_frames: smallest chunk the adaptive controller picks (``codec_chunk_min_frames``).
        safety_margin_seconds: audio it keeps in reserve (``codec_chunk_safety_margin_ms``).
        ladder: every chunk size that a stream may have, ascending. A request picks among these and a stateful
            codec is warmed for exactly these.
        warnings: what is legal but probably not meant; the caller logs it.
    """

    steady: int
    initial: int
    initial_dynamic: bool
    left_context: int
    ramp: tuple[int, ...]
    adaptive: bool
    min_frames: int
    safety_margin_seconds: float
    ladder: tuple[int, ...]
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, source: str = "stream") -> ChunkSchedule:
        """Check a voice's ``stream:`` mapping (key names as in vLLM-Omni deploy files) and freeze it.

        Args:
            mapping: any of ``VOICE_KEYS``; an absent key has its default, a null ``codec_chunk_ramp`` is off.
            source: what error messages call the mapping, usually the voice's file.

        Raises:
            ScheduleError: an unknown key, or a value of the wrong type or out of range.
        """
        values = _Reader(mapping, VOICE_KEYS, source)
        steady = values.frames("codec_chunk_frames", DEFAULT_STEADY_FRAMES, minimum=1)
        initial = values.frames("initial_codec_chunk_frames", 0, maximum=steady)
        dynamic = values.flag("initial_codec_chunk_dynamic", False)
        ramp = values.ramp("codec_chunk_ramp", ())
        adaptive = values.flag("codec_chunk_adaptive", False)
        min_frames = values.frames("codec_chunk_min_frames", 1, minimum=1, maximum=steady)
        margin_ms = values.milliseconds("codec_chunk_safety_margin_ms", DEFAULT_SAFETY_MARGIN_MS)
        if dynamic and not dynamic_initial_sizes(steady):
            raise values.error(
                "initial_codec_chunk_dynamic",
                f"needs codec_chunk_frames of at least 3, it is {steady}; raise it or remove this key",
            )

        sizes = {steady, *ramp}
        if initial:
            sizes.add(initial)
        if dynamic:
            sizes.update(dynamic_initial_sizes(steady))
        if adaptive and not ramp:
            sizes.update(_doublings(min_frames, steady))
        return cls(
            steady=steady,
            initial=initial,
            initial_dynamic=dynamic,
            left_context=values.frames("codec_left_context_frames", 0),
            ramp=ramp,
            adaptive=adaptive,
            min_frames=min_frames,
            safety_margin_seconds=margin_ms / 1000.0,
            ladder=tuple(sorted(sizes)),
            warnings=_ramp_warnings(ramp, steady, source),
        )

    def for_request(
        self,
        overrides: Mapping[str, Any],
        *,
        mode: Literal["state", "window", "rerun"] = "state",
        source: str = "request",
    ) -> ChunkSchedule:
        """This schedule as one request wants it. The ladder stays the voice's.

        A ramp given as null or "off" is off; naming one switches a voice's adaptive controller off, unless
        the request asks for it. ``initial_codec_chunk_frames`` sets the first chunk, also that of a ramp or
        of the controller. A smaller ``codec_chunk_frames`` cuts the voice's ramp off at that size.

        Args:
            overrides: any of ``REQUEST_KEYS``.
            mode: the codec's; ``window`` also refuses what would make a window of a length not warmed.
            source: what error messages call the overrides.

        Raises:
            ScheduleError: an unknown key, a malformed value, or a size that is not on the ladder.
        """
        if not overrides:
            return self
        values = _Reader(overrides, REQUEST_KEYS, source)
        steady = values.on_ladder("codec_chunk_frames", self.steady, self.ladder)
        ramp = values.ramp("codec_chunk_ramp", tuple(size for size in self.ramp if size <= steady))
        for size in ramp:
            if size not in self.ladder:
                raise values.error("codec_chunk_ramp", _not_on_ladder(size, self.ladder))
        given = overrides.get("initial_codec_chunk_frames") is not None
        initial = min(self.initial, steady)
        if given:
            initial = values.on_ladder("initial_codec_chunk_frames", 0, self.ladder, zero=True)
            if initial > steady:
                raise values.error(
                    "initial_codec_chunk_frames",
                    f"must be at most codec_chunk_frames = {steady}; choose a smaller one",
                )
            if initial and ramp:
                ramp = (initial, *ramp[1:])
        schedule = replace(
            self,
            steady=steady,
            initial=initial,
            initial_dynamic=self.initial_dynamic and not given,
            ramp=ramp,
            adaptive=values.flag(
                "codec_chunk_adaptive", self.adaptive and "codec_chunk_ramp" not in overrides
            ),
            warnings=_ramp_warnings(ramp, steady, source),
        )
        if mode == "window":
            extra = sorted(set(schedule.frame_sizes("window")) - set(self.frame_sizes("window")))
            if extra:
                raise ScheduleError(
                    f"{source}: {_shown(dict(overrides))}: makes windows of {extra} frames, which are "
                    f"not warmed; this voice's codec is warmed for {list(self.frame_sizes('window'))}, "
                    "so leave its chunk sizes as they are"
                )
        return schedule

    def frame_sizes(self, mode: Literal["state", "window"]) -> tuple[int, ...]:
        """Every number of frames T that a codec call of this schedule can have, ascending.

        ``state``: the ladder. A last chunk may hold any number of frames up to the next size; a stateful
        codec pads it on the right to the next of these sizes and trims the audio, so it adds no T.
        ``window``: every context + chunk that can occur; a last window may again be shorter. Look-ahead is
        the codec engine's own affair and comes on top. A codec in ``rerun`` mode has no fixed sizes.

        Raises:
            ScheduleError: another mode.
        """
        if mode == "state":
            return self.ladder
        if mode == "window":
            return tuple(sorted(self._window_sizes()))
        raise ScheduleError(f"frame_sizes({mode!r}): only 'state' and 'window' codecs have fixed sizes")

    def policy(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        frame_seconds: float,
        load: float = 0.0,
        windowed: bool = False,
        context_cost_seconds: float = 0.0,
    ) -> ChunkPolicy:
        """A fresh policy for one stream.

        Args:
            clock: seconds, monotonic; also the clock of ``ChunkPolicy.observe_frame``.
            frame_seconds: audio in one frame.
            load: share of stream slots in use, this stream's included; read by the dynamic initial chunk.
            windowed: the codec keeps no state, so windows carry ``left_context`` frames.
            context_cost_seconds: codec time that decoding the full left context adds to a chunk; read by the
                adaptive controller.
        """
        context = self.left_context if windowed else 0
        first = dynamic_initial_size(load, self.steady) if self.initial_dynamic else self.initial
        if self.adaptive:
            settings = AdaptiveSettings(
                ladder=self._adaptive_ladder(),
                frame_seconds=frame_seconds,
                first=first,
                safety_margin_seconds=self.safety_margin_seconds,
                context_cost_seconds=context_cost_seconds if windowed else 0.0,
            )
            return AdaptiveChunkPolicy(settings, clock=clock, left_context=context)
        sizes = self.ramp or ((first,) if first else ())
        return ScheduledLeftContextChunkPolicy(sizes, self.steady, context)

    def _adaptive_ladder(self) -> tuple[int, ...]:
        return tuple(size for size in self.ladder if self.min_frames <= size <= self.steady)

    def _window_sizes(self) -> set[int]:
        if self.adaptive:
            return _reachable_windows(self.ladder, self.left_context)
        arms: list[tuple[int, ...]] = [self.ramp] if self.ramp else []
        if self.initial_dynamic:
            arms += [(size,) for size in dynamic_initial_sizes(self.steady)]
        elif self.initial:
            arms.append((self.initial,))
        windows: set[int] = set()
        for arm in arms or [()]:
            delivered = 0
            for size in (*arm, *[self.steady] * (self.left_context // self.steady + 2)):
                windows.add(min(delivered, self.left_context) + size)
                delivered += size
        return windows


class _Reader:
    """Typed look-ups in one mapping, with errors that name it."""

    def __init__(self, mapping: Mapping[str, Any], keys: Sequence[str], source: str) -> None:
        if not isinstance(mapping, Mapping):
            raise ScheduleError(
                f"{source}: {_shown(mapping)}: must be a mapping with keys among {', '.join(keys)}"
            )
        unknown = [key for key in mapping if key not in keys]
        if unknown:
            raise ScheduleError(
                f"{source}: {unknown[0]} = {_shown(mapping[unknown[0]])}: unknown key; "
                f"remove it or use one of {', '.join(keys)}"
            )
        self._mapping = mapping
        self._source = source

    def error(self, key: str, problem: str) -> ScheduleError:
        return ScheduleError(f"{self._source}: {key} = {_shown(self._mapping.get(key))}: {problem}")

    def flag(self, key: str, default: bool) -> bool:
        value = self._mapping.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def frames(self, key: str, default: int, *, minimum: int = 0, maximum: int = MAX_FRAMES) -> int:
        value = self._mapping.get(key)
        if value is None:
            return default
        if not _is_whole(value) or not minimum <= value <= maximum:
            raise self.error(key, f"must be a whole number of frames from {minimum} to {maximum}")
        return value

    def on_ladder(self, key: str, default: int, ladder: tuple[int, ...], *, zero: bool = False) -> int:
        value = self._mapping.get(key)
        if value is None:
            return default
        if not _is_whole(value) or not (value in ladder or (zero and value == 0)):
            raise self.error(key, _not_on_ladder(value, ladder, zero))
        return value

    def milliseconds(self, key: str, default: float) -> float:
        value = self._mapping.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "must be a number of milliseconds")
        if not (math.isfinite(value) and 0 <= value <= 10_000):
            raise self.error(key, "must be from 0 to 10000 milliseconds")
        return float(value)

    def ramp(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list of sizes or their comma-separated text; null, false and "off" mean none."""
        if key not in self._mapping:
            return default
        value = self._mapping[key]
        if value is None or value is False or value == "off":
            return ()
        way_out = (
            'write at least two positive frame counts, e.g. [2, 4, 8, 15] or "2,4,8,15", or null for no ramp'
        )
        entries: list[Any]
        if isinstance(value, str):
            if len(value) > MAX_RAMP_TEXT:
                raise self.error(key, f"has {len(value)} characters, more than {MAX_RAMP_TEXT}; shorten it")
            entries = [_parsed(part) for part in value.split(",")]
        elif isinstance(value, (list, tuple)):
            entries = list(value)
        else:
            raise self.error(key, f"must be a list or comma-separated text; {way_out}")
        if not all(_is_whole(entry) for entry in entries):
            raise self.error(key, f"has an entry that is not a whole number; {way_out}")
        if len(entries) < 2:
            raise self.error(key, f"has fewer than two entries; {way_out}")
        if len(entries) > MAX_RAMP_ENTRIES:
            raise self.error(key, f"has {len(entries)} entries, more than {MAX_RAMP_ENTRIES}; shorten it")
        if min(entries) <= 0 or max(entries) > MAX_FRAMES:
            raise self.error(key, f"has an entry outside 1 to {MAX_FRAMES}; {way_out}")
        return tuple(entries)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parsed(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", text) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _not_on_ladder(size: object, ladder: tuple[int, ...], zero: bool = False) -> str:
    choices = ", ".join(map(str, (0, *ladder) if zero else ladder))
    return f"{_shown(size)} is not a size this voice is warmed for; choose among {choices}"


def _doublings(smallest: int, steady: int) -> Iterable[int]:
    size = smallest
    while size < steady:
        yield size
        size *= 2


def _ramp_warnings(ramp: tuple[int, ...], steady: int, source: str) -> tuple[str, ...]:
    warnings = []
    if ramp and ramp[-1] != steady:
        warnings.append(
            f"{source}: codec_chunk_ramp = {list(ramp)} ends at {ramp[-1]} frames but "
            f"codec_chunk_frames = {steady}: after the ramp comes a cliff from {ramp[-1]} to {steady}; "
            f"end the ramp with {steady}"
        )
    if any(after < before for before, after in pairwise(ramp)):
        warnings.append(
            f"{source}: codec_chunk_ramp = {list(ramp)} shrinks on its way; ramps are meant to grow"
        )
    return tuple(warnings)


def _reachable_windows(ladder: tuple[int, ...], left_context: int) -> set[int]:
    """Context + chunk over all sequences of ladder sizes."""
    contexts = {0}
    frontier = {0}
    while frontier:
        frontier = {min(context + size, left_context) for context in frontier for size in ladder} - contexts
        contexts |= frontier
    return {context + size for context in contexts for size in ladder}

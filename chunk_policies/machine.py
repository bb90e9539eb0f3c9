"""What a machine costs, for the simulator: costs as fields, presets with the source of each figure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

ORDERS = ("deadline", "first-chunks", "fifo")


@dataclass(frozen=True)
class Machine:
    """The costs of one machine, all in seconds; what is not given is free.

    Attributes:
        name: what reports call it.
        frame_seconds: audio in one frame.
        prefill: from a request's arrival until its stream joins the talker's batch, mean. It delays only that
            stream.
        prefill_spread: its run-to-run spread, as sigma of a log-normal distribution.
        step: one talker step, which gives every running stream one frame; plus ``step_per_stream`` for each
            stream in the batch.
        step_per_stream: see ``step``.
        codec_call: one codec call, whatever is in it.
        codec_row: each stream in the call, on top.
        codec_frame: each new frame of each row, on top.
        codec_context_frame: each context frame of each row, on top (windowed codecs).
        codec_batch: most rows a call takes; 1 is an unbatched codec. Rows of one call have the same T.
        order: which chunks the codec takes first: ``deadline`` (the listener that runs dry first; a first
            chunk's deadline is now), ``first-chunks`` (first chunks, then by age) or ``fifo`` (by age).
        jitter: spread of every step and codec call, as sigma of a log-normal distribution.
        sources: where the figures come from.
    """

    name: str
    frame_seconds: float
    prefill: float = 0.0
    prefill_spread: float = 0.0
    step: float = 0.0
    step_per_stream: float = 0.0
    codec_call: float = 0.0
    codec_row: float = 0.0
    codec_frame: float = 0.0
    codec_context_frame: float = 0.0
    codec_batch: int = 1
    order: str = "deadline"
    jitter: float = 0.0
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" and not (
                isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
            ):
                raise ValueError(
                    f"machine {self.name}: {field.name} = {value!r}: must be a number, 0 or more"
                )
        if self.frame_seconds <= 0:
            raise ValueError(f"machine {self.name}: frame_seconds = {self.frame_seconds!r}: must be above 0")
        if not isinstance(self.codec_batch, int) or self.codec_batch < 1:
            raise ValueError(f"machine {self.name}: codec_batch = {self.codec_batch!r}: must be at least 1")
        if self.order not in ORDERS:
            raise ValueError(
                f"machine {self.name}: order = {self.order!r}: must be one of {', '.join(ORDERS)}"
            )

    def step_seconds(self, batch: int) -> float:
        """One talker step with ``batch`` running streams."""
        return self.step + self.step_per_stream * batch

    def codec_seconds(self, batch: int, frames: int, context: int) -> float:
        """One codec call of ``batch`` rows, each of ``frames`` new and ``context`` context frames."""
        row = self.codec_row + self.codec_frame * frames + self.codec_context_frame * context
        return self.codec_call + batch * row

    def changed(self, values: Mapping[str, Any]) -> Machine:
        """A copy with other costs.

        Raises:
            ValueError: an unknown field or a value out of range.
        """
        known = {field.name for field in fields(self)}
        for key, value in values.items():
            if key not in known:
                raise ValueError(
                    f"machine {self.name}: {key} = {value!r}: unknown; use one of {sorted(known)}"
                )
        return replace(self, **values)


#: vLLM-Omni PR #8124: MOSS-TTS on an Ascend 910B2C at concurrency 8, calibrated on that table's row without
#: ramp alone. ``docs/ramps.md`` says how, and which assumptions are ours.
ASCEND_910B = Machine(
    name="ascend-910b",
    frame_seconds=0.08,
    prefill=1.075,
    prefill_spread=0.1,
    step=0.012,
    codec_call=0.02436,
    codec_frame=0.001176,
    codec_batch=1,
    order="first-chunks",
    jitter=0.05,
    sources=(
        "frame_seconds: MOSS-TTS runs at 12.5 frames a second (model card)",
        "prefill: time to first packet of the ramp-off row, 1.13 s, less the first frame and its decode",
        "step, codec_call + 15 codec_frame: python -m chunk_policies.calibrate, on the ramp-off row alone",
        "codec_frame : codec_call: sglang-omni PR #798, graphed decode of T=5 in 18.5 ms at B=8 and 30.7 ms "
        "at B=16, so 42 % of a B=1, T=15 call grows with T",
        "codec_batch, order: assumed; one chunk at a time, and first chunks do not queue behind others",
        "spreads and jitter: assumed",
    ),
)

#: Qwen3-TTS on an NVIDIA H100.
H100 = Machine(
    name="h100",
    frame_seconds=0.08,
    prefill=0.014,
    prefill_spread=0.1,
    step=0.016,
    codec_call=0.005,
    codec_frame=0.0003,
    codec_batch=16,
    order="deadline",
    jitter=0.05,
    sources=(
        "frame_seconds: Qwen3-TTS 12 Hz, 1920 samples at 24 kHz (model card)",
        "step: about 16 ms a frame (vLLM-Omni issue #4855, a maintainer on the H100)",
        "prefill: time to first byte p50 36 ms at one request a second (sglang-omni PR #1928), less the "
        "first frame and its decode",
        "codec: graphed decodes of 2 to 24 frames take 5 to 21 ms, 12.4 ms on average, on an H200 "
        "(sglang-omni PR #1912); 0.3 ms a frame and row as in sglang-omni PR #798",
        "spreads and jitter: assumed",
    ),
)

#: The slower of the two regimes named in vLLM-Omni issue #4855; everything but the frame as on the H100.
QWEN3_910B = H100.changed(
    {
        "name": "qwen3-910b",
        "step": 0.044,
        "sources": (
            "step: about 44 ms a frame (vLLM-Omni issue #4855, the same maintainer on the Ascend 910B)",
            "everything else: as h100, so that the comparison changes one thing",
        ),
    }
)

PRESETS = {machine.name: machine for machine in (ASCEND_910B, H100, QWEN3_910B)}


def load_machine(name: str) -> Machine:
    """A preset by name, or a machine from a JSON file with the fields of :class:`Machine`.

    Raises:
        ValueError: neither, or fields that are not valid.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        raise ValueError(f"machine = {name!r}: must be one of {', '.join(PRESETS)} or an existing .json file")
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: not valid JSON ({error})") from error
    if not isinstance(values, dict) or "frame_seconds" not in values:
        raise ValueError(f"{name}: must be an object with frame_seconds and other costs in seconds")
    values = {"name": path.stem, **values, "sources": tuple(values.get("sources", ()))}
    return Machine(name=path.stem, frame_seconds=1.0).changed(values)

"""How the preset ``ascend-910b`` was fitted: ``python -m chunk_policies.calibrate``.

Uses the row without ramp of vLLM-Omni PR #8124 and nothing else: RTF 0.21 to 0.22, continuity 0.0 %, mean
underrun about 0.37 s. Two costs are free, the talker's step and the codec's call at 15 frames; of those that
meet RTF and continuity, the one with the nearest underrun wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from chunk_policies.machine import ASCEND_910B, Machine
from chunk_policies.pipeline import Workload
from chunk_policies.schedule import ChunkSchedule
from chunk_policies.simulate import ArmResult, run_arm

PUBLISHED_RTF = (0.21, 0.22)
PUBLISHED_UNDERRUN = 0.37
ROUNDS = 20
STEP_MS = (11, 12, 13, 14)
CODEC_MS = (40, 41, 42, 43, 44)
#: Share of a codec call of one row and 15 frames that grows with the frames (source: see the preset).
GROWING_SHARE = 0.42


def candidates() -> Iterator[tuple[int, int, Machine]]:
    """(step in ms, codec call at 15 frames in ms, machine with these costs)."""
    for step, codec in product(STEP_MS, CODEC_MS):
        fixed, growing = (1 - GROWING_SHARE) * codec / 1000, GROWING_SHARE * codec / 1000
        costs = {"step": step / 1000, "codec_call": fixed, "codec_frame": growing / 15}
        yield step, codec, ASCEND_910B.changed(costs)


def meets_row(result: ArmResult) -> bool:
    """Whether RTF (to three decimals) and continuity are the published ones."""
    low, high = PUBLISHED_RTF
    return low <= round(result.median("rtf_after_first"), 3) <= high and result.median("continuous") == 0.0


def main() -> None:
    """Print every candidate and the best."""
    off = ChunkSchedule.from_mapping({"initial_codec_chunk_frames": 1})
    fitting = []
    print("step ms  codec ms  RTF after 1st  A cont %  underrun ms")
    for step, codec, machine in candidates():
        result = run_arm("off", off, machine, Workload(), ROUNDS)
        rtf, continuous, underrun = map(result.median, ("rtf_after_first", "continuous", "underrun"))
        mark = " *" if meets_row(result) else ""
        print(f"{step:7d}  {codec:8d}  {rtf:13.3f}  {100 * continuous:8.1f}  {1000 * underrun:11.0f}{mark}")
        if meets_row(result):
            fitting.append((abs(underrun - PUBLISHED_UNDERRUN), step, codec))
    _, step, codec = min(fitting)
    print(f"* meets RTF and continuity; nearest underrun: step {step} ms, codec {codec} ms")


if __name__ == "__main__":
    main()

"""What the policies cost the orchestrator: ``python -m chunk_policies.overhead``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from chunk_policies.schedule import ChunkSchedule
from chunk_policies.stream_buffer import StreamBuffer

FRAMES_A_STREAM = 1000

SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "initial 1, steady 15": {"initial_codec_chunk_frames": 1},
    "ramp 2,4,8,15": {"codec_chunk_ramp": [2, 4, 8, 15]},
    "ramp, context 25": {"codec_chunk_ramp": [2, 4, 8, 15], "codec_left_context_frames": 25},
    "adaptive": {"codec_chunk_adaptive": True, "codec_chunk_ramp": [2, 4, 8, 15]},
}


def seconds_for(schedule: ChunkSchedule, frames: int) -> float:
    """Time to pass ``frames`` frames through buffer and policy, polling after each, in streams of 1000."""
    start = time.perf_counter()
    for _ in range(frames // FRAMES_A_STREAM):
        policy = schedule.policy(frame_seconds=0.08, windowed=schedule.left_context > 0)
        buffer: StreamBuffer[int] = StreamBuffer(policy)
        for frame in range(FRAMES_A_STREAM):
            policy.observe_frame(0.016 * frame)
            buffer.put(frame)
            if buffer.has_chunk_ready():
                buffer.pop_chunk()
        buffer.signal_done()
        while buffer.has_chunk_ready():
            buffer.pop_chunk()
    return time.perf_counter() - start


def main() -> None:
    """Print the time of a million frames for each kind of schedule."""
    parser = argparse.ArgumentParser(prog="python -m chunk_policies.overhead", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    frames = parser.parse_args().frames
    for name, mapping in SCHEDULES.items():
        seconds = seconds_for(ChunkSchedule.from_mapping(mapping), frames)
        print(f"{name:22s} {frames} frames in {seconds:.2f} s, {1e6 * seconds / frames:.2f} us a frame")


if __name__ == "__main__":
    main()

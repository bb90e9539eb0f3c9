"""When frames leave: chunk policies, the stream buffer, and the one schedule that both sides read."""

from chunk_policies.adaptive import (
    AdaptiveChunkPolicy,
    AdaptiveController,
    AdaptiveSettings,
    AdaptiveTelemetry,
)
from chunk_policies.context import ContextChunkPolicy
from chunk_policies.fixed import FixedChunkPolicy
from chunk_policies.initial import dynamic_initial_size, dynamic_initial_sizes
from chunk_policies.left_context import LeftContextChunkPolicy
from chunk_policies.policy import ChunkPolicy
from chunk_policies.ramp import RampChunkPolicy
from chunk_policies.schedule import ChunkSchedule, ScheduleError
from chunk_policies.scheduled import ScheduledLeftContextChunkPolicy
from chunk_policies.sliding_window import SlidingWindowChunkPolicy
from chunk_policies.stream_buffer import StreamBuffer, StreamChunk

__all__ = [
    "AdaptiveChunkPolicy",
    "AdaptiveController",
    "AdaptiveSettings",
    "AdaptiveTelemetry",
    "ChunkPolicy",
    "ChunkSchedule",
    "ContextChunkPolicy",
    "FixedChunkPolicy",
    "LeftContextChunkPolicy",
    "RampChunkPolicy",
    "ScheduleError",
    "ScheduledLeftContextChunkPolicy",
    "SlidingWindowChunkPolicy",
    "StreamBuffer",
    "StreamChunk",
    "dynamic_initial_size",
    "dynamic_initial_sizes",
]

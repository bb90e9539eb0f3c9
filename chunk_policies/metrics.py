"""How well a stream would have played: the four public definitions of streaming quality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

#: Definition A: a stream is continuous up to this underrun (vLLM-Omni's benchmark threshold).
CONTINUITY_SECONDS = 0.1
#: Definition B: thresholds for the largest single pause (sglang-omni's C50, C100 and C200).
PAUSE_SECONDS = (0.05, 0.1, 0.2)
#: Definition C: shorter gaps do not count (vLLM-Omni's controller).
AUDIBLE_GAP_SECONDS = 0.005


@dataclass(frozen=True)
class StreamQuality:
    """One request. All times in seconds.

    Attributes:
        ttfp: from the request to the first packet.
        rtf: time from the request to the last packet, per second of audio (prefill and queueing included).
        rtf_after_first: time from the first packet to the last, per second of audio.
        audio: duration of the audio.
        chunks: packets with audio.
        underrun: definition A. A player starts at the first packet and never pauses; the largest time by
            which a packet came after the audio before it had ended. Equals the start delay that would have
            been enough.
        longest_pause: definition B. The player pauses when it has nothing; its longest single pause.
        silence: definition C. The same player's pauses of more than 5 ms, added up.
        late_chunks: definition D. Packets that came after the audio before them had ended, at 0 ms.
        longest_interval: between two packets.
    """

    ttfp: float
    rtf: float
    rtf_after_first: float
    audio: float
    chunks: int
    underrun: float
    longest_pause: float
    silence: float
    late_chunks: int
    longest_interval: float


def stream_quality(start: float, packets: Sequence[tuple[float, float]]) -> StreamQuality:
    """Measure one request from its trace.

    Args:
        start: when the request was sent.
        packets: (arrival, seconds of audio) of each packet with audio, in order.

    Raises:
        ValueError: no packet.
    """
    if not packets:
        raise ValueError("packets = []: a stream without audio has no streaming quality; count it as failed")
    first = packets[0][0]
    audio = underrun = longest_pause = silence = longest_interval = 0.0
    late = 0
    previous = cursor = first
    for arrival, seconds in packets:
        deficit = arrival - first - audio
        pause = max(0.0, arrival - cursor)
        underrun = max(underrun, deficit)
        late += deficit > 0
        longest_pause = max(longest_pause, pause)
        silence += pause if pause > AUDIBLE_GAP_SECONDS else 0.0
        longest_interval = max(longest_interval, arrival - previous)
        audio += seconds
        cursor = max(arrival, cursor) + seconds
        previous = arrival
    return StreamQuality(
        ttfp=first - start,
        rtf=(previous - start) / audio,
        rtf_after_first=(previous - first) / audio,
        audio=audio,
        chunks=len(packets),
        underrun=underrun,
        longest_pause=longest_pause,
        silence=silence,
        late_chunks=late,
        longest_interval=longest_interval,
    )


@dataclass(frozen=True)
class QualitySummary:
    """Many requests: means, and shares from 0 to 1.

    A stream of one packet is continuous by A; B and D say nothing about it, so their shares leave it out
    (``nan`` if nothing remains).
    """

    streams: int
    ttfp: float
    ttfp_p95: float
    rtf: float
    rtf_after_first: float
    chunks: float
    underrun: float
    underrun_max: float
    continuous: float
    c50: float
    c100: float
    c200: float
    silence: float
    on_time: float
    interval_p99: float


def summarise(streams: Sequence[StreamQuality]) -> QualitySummary:
    """Put requests together.

    Raises:
        ValueError: no request.
    """
    if not streams:
        raise ValueError("streams = []: nothing to summarise")
    several = [stream for stream in streams if stream.chunks > 1]
    c50, c100, c200 = (
        _share([stream.longest_pause <= limit for stream in several]) for limit in PAUSE_SECONDS
    )
    return QualitySummary(
        streams=len(streams),
        ttfp=fmean(stream.ttfp for stream in streams),
        ttfp_p95=percentile([stream.ttfp for stream in streams], 95),
        rtf=fmean(stream.rtf for stream in streams),
        rtf_after_first=fmean(stream.rtf_after_first for stream in streams),
        chunks=fmean(stream.chunks for stream in streams),
        underrun=fmean(stream.underrun for stream in streams),
        underrun_max=max(stream.underrun for stream in streams),
        continuous=_share([stream.underrun <= CONTINUITY_SECONDS for stream in streams]),
        c50=c50,
        c100=c100,
        c200=c200,
        silence=fmean(stream.silence for stream in streams),
        on_time=_share([stream.late_chunks == 0 for stream in several]),
        interval_p99=percentile([stream.longest_interval for stream in streams], 99),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits) if hits else math.nan

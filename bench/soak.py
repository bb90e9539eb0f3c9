"""`./tritone bench soak`: thousands of requests of all lengths, many of them broken off or bad, on the real server.

Every sample that arrives is compared with the same request spoken alone. At the end nothing may be left: no open
stream, no ledger row, no request inside Triton, and no process that was replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from bench import environment
from bench.endings import HANG_SECONDS, send
from bench.fuzz import settle
from bench.misuse import Mischief
from bench.references import Comparison, KnownSpeech, Reference, speak_all
from bench.session import Bar
from bench.supervised import Reading, Watched, supervised_server
from client import AsyncTTSClient
from client.config import ClientConfig
from client.errors import ProtocolError, TTSError, error_from_rpc
from client.protocol import StreamDecoder
from client.request import control_request, new_stream_id, speech_request
from client.trace import TraceRecorder

# Shares of what is done to a stream, in percent.
MIX: Mapping[str, int] = {
    "speak": 62,
    "append": 4,  # text that comes in parts
    "cancel": 8,  # op=cancel
    "close": 8,  # the call is cancelled
    "drop": 4,  # the connection is gone
    "http": 4,  # read to its end over HTTP
    "http drop": 4,  # the HTTP connection is closed
    "bad": 6,
}
CANCELS = ("cancel", "close", "drop", "http drop")
EXPECTED_ERRORS = ("FULL",)  # refused at once: no fault of a server that is full
QUIET_SECONDS = 1.0
SHORT_SHARE, MEDIUM_SHARE = 0.85, 0.13


@dataclass(frozen=True)
class SoakPlan:
    """requests: how many. streams: at a time. mix: shares of the kinds. seed: of all chance."""

    requests: int = 10_000
    streams: int = 48
    mix: Mapping[str, int] = field(default_factory=lambda: MIX)
    seed: int = 1


@dataclass(frozen=True)
class Ended:
    """What became of a request. kind: what was done to it. how: finish reason, error code, or "left" if we left
    it. ttfp: seconds. samples: received and compared. fault: what is wrong."""

    kind: str
    how: str
    ttfp: float | None = None
    samples: int = 0
    fault: str | None = None


@dataclass
class SoakReport:
    """readings: what the server held at the start, when a tenth of the requests was done, at the end."""

    plan: SoakPlan
    ended: list[Ended] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    wall_seconds: float = 0.0

    @property
    def growth_megabytes(self) -> dict[str, float]:
        """Of each process, from a tenth of the requests to the end."""
        if "end" not in self.readings:
            return {}
        warm, end = self.readings["warm"].processes, self.readings["end"].processes
        return {
            name: end[name].resident_megabytes - warm[name].resident_megabytes for name in warm if name in end
        }

    def ttfp(self, kind: str = "speak") -> list[float]:
        return [one.ttfp for one in self.ended if one.kind == kind and one.ttfp is not None]


class Soak:
    """Runs a plan against one server."""

    def __init__(self, url: str, http: tuple[str, int], plan: SoakPlan, watched: Watched | None) -> None:
        self._url = url
        self._http = http
        self._plan = plan
        self._watched = watched
        self._random = random.Random(plan.seed)
        self._mischief = Mischief(plan.seed, open_text=False)  # which would wait for limits.idle_seconds
        self._report = SoakReport(plan)
        self._options = ClientConfig(url, keepalive=None).channel_options()
        self._kinds: Mapping[str, Callable[[Any, Reference], Awaitable[Ended]]] = {
            "speak": self._speak,
            "append": self._append,
            "cancel": self._cancel,
            "close": self._close,
            "drop": self._drop,
            "http": self._http_speak,
            "http drop": self._http_drop,
            "bad": self._bad,
        }

    async def run(self, speech: KnownSpeech, bar: Bar) -> SoakReport:
        """speech: of this server."""
        plan, report = self._plan, self._report
        self._speech = speech
        bar.begin("soak", plan.requests)
        self._read("start")
        began = time.monotonic()
        kinds = iter(self._random.choices(list(plan.mix), weights=list(plan.mix.values()), k=plan.requests))
        async with (
            grpc.aio.insecure_channel(self._url, self._options) as channel,
            AsyncTTSClient(self._url) as self._client,
        ):
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

            async def user() -> None:
                for kind in kinds:
                    await asyncio.sleep(self._random.random() * 0.05)
                    self._note(await self._kinds[kind](stub, self._draw()))
                    bar.advance()

            await asyncio.gather(*(user() for _ in range(plan.streams)))
        report.wall_seconds = time.monotonic() - began
        report.faults += await settle(self._url, self._watched, report.readings.get("start"))
        gc.collect()
        await asyncio.sleep(QUIET_SECONDS)  # closed connections leave the server's tables
        self._read("end")
        return report

    def _draw(self) -> Reference:
        chance = self._random.random()
        if chance < SHORT_SHARE:
            return self._random.choice(self._speech.short)
        return self._random.choice(
            self._speech.medium if chance < SHORT_SHARE + MEDIUM_SHARE else self._speech.long
        )

    def _read(self, moment: str) -> None:
        if self._watched is not None:
            self._report.readings[moment] = self._watched.reading()

    def _note(self, ended: Ended) -> None:
        self._report.ended.append(ended)
        if ended.fault is not None:
            self._report.faults.append(f"{ended.kind} ({ended.how}): {ended.fault[:500]}")
        if len(self._report.ended) == max(1, self._plan.requests // 10):
            self._read("warm")

    # What users do.

    async def _speak(self, stub: Any, reference: Reference) -> Ended:
        return await self._read_stream("speak", stub, reference, None)

    async def _cancel(self, stub: Any, reference: Reference) -> Ended:
        return await self._read_stream("cancel", stub, reference, self._random.randrange(4))

    async def _close(self, stub: Any, reference: Reference) -> Ended:
        return await self._read_stream("close", stub, reference, self._random.randrange(4))

    async def _drop(self, stub: Any, reference: Reference) -> Ended:
        async with grpc.aio.insecure_channel(self._url, self._options) as channel:
            own = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return await self._read_stream("drop", own, reference, self._random.randrange(4))

    async def _read_stream(
        self, kind: str, stub: Any, reference: Reference, leave_after: int | None
    ) -> Ended:
        """leave_after: chunks after which the stream is left in the way of its kind; None reads to the end."""
        stream_id = new_stream_id()
        request = speech_request("tts", stream_id, reference.text, {"seed": reference.seed})
        recorder, comparison = TraceRecorder(stream_id), Comparison(reference)
        decoder = StreamDecoder(stream_id, recorder)
        call = stub.ModelStreamInfer(iter([request]), timeout=HANG_SECONDS)
        chunks, asked = 0, False
        first: float | None = None

        def ended(how: str, fault: str | None = None) -> Ended:
            return Ended(kind, how, first, comparison.position, fault or comparison.fault)

        try:
            if leave_after == 0:
                await asyncio.sleep(self._random.random() * 0.1)
                if kind != "cancel":
                    return ended("left")
                asked = await self._ask_to_cancel(stub, stream_id)
            async for response in call:
                chunk = decoder.decode(response)
                if chunk is not None:
                    first = first if first is not None else chunk.arrival_seconds
                    comparison.chunk(chunk.samples)
                    chunks += 1
                if decoder.finished:
                    continue  # to the call's own end; Triton leaks memory for each that is cancelled instead
                if leave_after is not None and chunks >= leave_after and not asked:
                    if kind != "cancel":
                        return ended("left")
                    asked = await self._ask_to_cancel(stub, stream_id)
            decoder.check_ended()
            decoder.check_complete()
        except ProtocolError as error:
            return ended(error.code, error.message)
        except TTSError as error:
            return ended(error.code, None if error.code in EXPECTED_ERRORS else error.message)
        except grpc.RpcError as error:
            problem = error_from_rpc(error, self._url)
            return ended(problem.code, problem.message)
        finally:
            call.cancel()
        reason = decoder.finish_reason or "nothing"
        if reason == "stop":
            comparison.end()
        wrong = reason != "stop" and not (asked and reason in ("cancelled", "nothing"))
        return ended(reason, f"finish_reason {reason}" if wrong else None)

    async def _ask_to_cancel(self, stub: Any, stream_id: str) -> bool:
        """The stream may have ended before; then the talker says so, which is right, too."""
        request = control_request("talker", "cancel", new_stream_id(), stream_id=stream_id)
        await send(stub, request)
        return True

    async def _append(self, stub: Any, reference: Reference) -> Ended:
        """Text word by word; chunks must be whole and in order, the audio itself is not known."""
        words = reference.text.split()
        stream = self._client.open(f"{words[0]} ", seed=reference.seed)

        async def write() -> None:
            for word in words[1:]:
                await stream.append(f"{word} ")
            await stream.end()

        writer = asyncio.ensure_future(write())
        try:
            async for _ in stream:
                pass
            await writer
        except TTSError as error:
            writer.cancel()
            return Ended("append", error.code, fault=None if error.code in EXPECTED_ERRORS else error.message)
        how = stream.finish_reason or "nothing"
        return Ended("append", how, fault=None if how == "stop" else f"finish_reason {how}")

    async def _bad(self, stub: Any, reference: Reference) -> Ended:
        ending = await send(stub, self._mischief.draw().request)
        return Ended("bad", ending.kind, fault=ending.fault)

    async def _http_speak(self, stub: Any, reference: Reference) -> Ended:
        return await self._over_http("http", reference, None)

    async def _http_drop(self, stub: Any, reference: Reference) -> Ended:
        return await self._over_http("http drop", reference, self._random.randrange(3))

    async def _over_http(self, kind: str, reference: Reference, leave_after: int | None) -> Ended:
        body = json.dumps({"target_text": reference.text, "seed": reference.seed}).encode()
        comparison, events = Comparison(reference), 0
        how = "left"
        reader, writer = await asyncio.open_connection(*self._http, limit=1 << 24)
        try:
            head = "POST /v2/models/tts/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            if leave_after == 0:
                await asyncio.sleep(self._random.random() * 0.1)
                return Ended(kind, how)
            while line := await asyncio.wait_for(reader.readline(), HANG_SECONDS):
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    full = "FULL:" in event["error"]
                    return Ended(kind, "FULL" if full else "error", fault=None if full else event["error"])
                comparison.chunk(np.asarray(event["waveform"], np.float32).reshape(-1))
                how = json.loads(event["chunk_info"])["finish_reason"] or "left"
                events += 1
                if leave_after is not None and events >= leave_after:
                    return Ended(kind, "left", samples=comparison.position, fault=comparison.fault)
        except (OSError, asyncio.TimeoutError) as error:
            return Ended(kind, "broken off", fault=repr(error))
        finally:
            writer.close()
        comparison.end()
        fault = comparison.fault or (None if how == "stop" else f"ended with {how}")
        return Ended(kind, how, samples=comparison.position, fault=fault)


def to_document(report: SoakReport, leaked: int | None) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "environment": environment.describe(),
        "plan": {**vars(report.plan), "mix": dict(report.plan.mix)},
        "wall_seconds": report.wall_seconds,
        "ended": {kind: dict(counts) for kind, counts in endings(report).items()},
        "samples_compared": sum(one.samples for one in report.ended),
        "faults": report.faults,
        "leaked_requests": leaked,
        "readings": {moment: reading.to_dict() for moment, reading in report.readings.items()},
    }


def endings(report: SoakReport) -> dict[str, Counter[str]]:
    """How often each kind ended how."""
    found: dict[str, Counter[str]] = {}
    for one in report.ended:
        found.setdefault(one.kind, Counter())[one.how] += 1
    return found


def print_report(report: SoakReport, leaked: int | None) -> None:
    """As Markdown, for docs/reliability.md."""
    compared = sum(one.samples for one in report.ended)
    print(
        f"{len(report.ended)} requests, {report.plan.streams} at a time, in {report.wall_seconds:.0f} s, "
        f"seed {report.plan.seed}. {compared} samples compared.\n"
    )
    print("| done to the stream | requests | ended with |\n|---|---|---|")
    for kind, counts in sorted(endings(report).items()):
        told = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"| {kind} | {counts.total()} | {told} |")
    if report.readings:
        print(
            "\n| process | resident MB: start, after a tenth, end | threads | descriptors |\n|---|---|---|---|"
        )
        for name in report.readings["start"].processes:
            of = [
                reading.processes[name] for reading in report.readings.values() if name in reading.processes
            ]
            cells = (
                ", ".join(f"{one.resident_megabytes:.0f}" for one in of),
                ", ".join(str(one.threads) for one in of),
                ", ".join(str(one.descriptors) for one in of),
            )
            print(f"| {name} | {' | '.join(cells)} |")
        shared = ", ".join(f"{reading.shared_megabytes:.1f}" for reading in report.readings.values())
        print(f"\n/dev/shm: {shared} MB. Ledger rows in use at the end: {report.readings['end'].rows}.")
    if leaked is not None:
        print(f"Requests that Triton still held when it was told to end: {leaked}.")
    tenth = max(1, len(report.ttfp()) // 10)
    early, late = report.ttfp()[:tenth], report.ttfp()[-tenth:]
    if early:
        print(
            f"First audio, median of the first and the last tenth: {1000 * float(np.median(early)):.0f} and "
            f"{1000 * float(np.median(late)):.0f} ms."
        )
    print(
        f"Faults (lost, repeated or wrong samples, hangs, deaths, unexpected errors): {len(report.faults)}."
    )
    for fault in report.faults[:20]:
        print(f"- {fault}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./tritone bench soak", description=__doc__)
    parser.add_argument("--url", metavar="HOST:PORT", help="a running server; else one is started and ended")
    parser.add_argument("--http-port", type=int, default=8000, help="of the server at --url (8000)")
    parser.add_argument("--requests", type=int, default=10_000, help="(10000)")
    parser.add_argument("--streams", type=int, default=48, help="at a time (48)")
    parser.add_argument("--cancels", type=int, metavar="N", help="instead: N cancels, a quarter of each kind")
    parser.add_argument("--voice", default="wren", help="of the server to start (wren)")
    parser.add_argument("--device", default="cpu", help="of the server to start (cpu)")
    parser.add_argument("--seed", type=int, default=1, help="(1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    options = parser.parse_args(arguments)
    plan = SoakPlan(options.requests, options.streams, seed=options.seed)
    if options.cancels:
        plan = SoakPlan(options.cancels, options.streams, dict.fromkeys(CANCELS, 1), options.seed)
    print(environment.headline(), "\n")
    watched = None
    with ExitStack() as stack:
        bar = stack.enter_context(Bar())
        if options.url:
            url, http = options.url, (options.url.rpartition(":")[0], options.http_port)
        else:
            watched = stack.enter_context(
                supervised_server(options.voice, device=options.device, probe_seconds=0.0)
            )
            url, http = watched.settings.grpc_url, (watched.settings.host, watched.settings.http_port)
        speech = asyncio.run(speak_all(url))
        report = asyncio.run(Soak(url, http, plan, watched).run(speech, bar))
    leaked = watched.leaked if watched else None
    if leaked:
        report.faults.append(f"Triton still held {leaked} requests at its end")
    if options.json:
        options.json.write_text(json.dumps(to_document(report, leaked), indent=1), encoding="utf-8")
    print_report(report, leaked)
    return int(bool(report.faults))

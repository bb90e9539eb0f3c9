"""`./tritone bench fuzz`: thousands of random bad requests at the real server, and a witness beside them.

Every request must end with audio or a clear error; no process may die; the witness, who only speaks, must not
notice. The same seed draws the same requests; `--first N` begins at the N-th of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from bench import environment
from bench.endings import Ending, infer, json_body, post, send, splash
from bench.misuse import MAX_SECONDS, Mischief
from bench.references import LONG, Comparison, Reference, speak_references
from bench.session import Bar
from bench.supervised import Reading, Watched, supervised_server
from client import AsyncTTSClient, TTSError
from client.config import ClientConfig
from client.metrics import StreamMetrics, Summary, measure, summarise

IDLE_SECONDS = 2.0  # of the server that is started here: open text that nobody continues ends soon
SETTLE_SECONDS = 15.0


@dataclass(frozen=True)
class FuzzPlan:
    """requests: how many. first: number of the first. parallel: how many at a time. seed: of all chance.
    open_text: some requests leave their text open, which takes limits.idle_seconds each."""

    requests: int = 10_000
    first: int = 0
    parallel: int = 12
    seed: int = 1
    open_text: bool = True


@dataclass
class FuzzReport:
    """endings: how requests ended, by kind of mischief. faults: what went wrong, with the request's number.
    witness: quality of the stream beside. before, after: what the server held."""

    plan: FuzzPlan
    endings: dict[str, Counter[str]] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    witness: Summary | None = None
    wall_seconds: float = 0.0
    before: Reading | None = None
    after: Reading | None = None

    def note(self, number: int, kind: str, ending: Ending) -> None:
        self.endings.setdefault(kind, Counter())[ending.kind] += 1
        self.examples.setdefault(ending.kind, f"{kind} {number}: {ending.text[:300]}")
        if ending.fault is not None:
            self.faults.append(f"{kind} {number}: {ending.fault[:600]}")


class Fuzzer:
    """Sends the requests of a plan to one server."""

    def __init__(self, url: str, http: tuple[str, int], plan: FuzzPlan, watched: Watched | None) -> None:
        self._url = url
        self._http = http
        self._plan = plan
        self._watched = watched
        self._report = FuzzReport(plan)
        self._over = False

    async def run(self, bar: Bar) -> FuzzReport:
        report = self._report
        references = await speak_references(self._url, LONG, [1])
        report.before = self._watched.reading() if self._watched else None
        began = time.monotonic()
        witness = asyncio.create_task(self._witness(references[0]))
        numbers = iter(self._draws())
        bar.begin("fuzz", self._plan.requests)
        options = ClientConfig(self._url, keepalive=None).channel_options()
        async with grpc.aio.insecure_channel(self._url, options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

            async def attack() -> None:
                for number, kind, action in numbers:
                    report.note(number, kind, await action(stub))
                    bar.advance()

            await asyncio.gather(*(attack() for _ in range(self._plan.parallel)))
        self._over = True
        report.witness = summarise(await witness)
        report.wall_seconds = time.monotonic() - began
        report.faults += await settle(self._url, self._watched, report.before)
        report.after = self._watched.reading() if self._watched else None
        return report

    def _draws(self) -> Iterator[tuple[int, str, Any]]:
        """(number, kind, action); drawn in the order of the numbers whoever sends them."""
        mischief, source = Mischief(self._plan.seed, self._plan.open_text), random.Random(self._plan.seed)
        for number in range(self._plan.first + self._plan.requests):
            misuse, way = mischief.draw(), source.random()
            data = source.randbytes(source.randrange(2_000))
            if number < self._plan.first:
                continue
            if way < 0.80:
                yield number, misuse.kind, lambda stub, request=misuse.request: send(stub, request)
            elif way < 0.85:
                yield number, "unary", lambda stub, request=misuse.request: infer(stub, request)
            elif way < 0.97:
                path, body = http_request(mischief, number, data)
                yield number, "http", lambda stub, path=path, body=body: post(*self._http, path, body)
            else:
                port = int(self._url.rpartition(":")[2]) if number % 2 else self._http[1]
                yield number, "garbage", lambda stub, port=port, data=data: splash(self._http[0], port, data)

    async def _witness(self, reference: Reference) -> list[StreamMetrics]:
        """Speak one text again and again; every sample is compared."""
        results = []
        async with AsyncTTSClient(self._url) as client:
            while not self._over:
                comparison = Comparison(reference)
                try:
                    async with client.stream(reference.text, seed=reference.seed) as stream:
                        async for chunk in stream:
                            comparison.chunk(chunk.samples)
                    comparison.end()
                    results.append(measure(stream.trace))
                except TTSError as error:
                    self._report.faults.append(f"witness: {error.code} {error.message}")
                if comparison.fault:
                    self._report.faults.append(f"witness: {comparison.fault}")
                await asyncio.sleep(0.05)
        return results


def http_request(mischief: Mischief, number: int, data: bytes) -> tuple[str, bytes]:
    """Path and body for Triton's HTTP front end: JSON of the right and the wrong form, and no JSON."""
    model = ("tts", "tts", "tts", "talker", "codec", "nobody")[number % 6]
    way = ("generate_stream", "generate_stream", "generate", "infer")[number % 4]
    text = mischief.text()
    limit = str(MAX_SECONDS)  # the front end refuses a number with a fraction
    bodies = (
        lambda: json_body({"target_text": text, "max_seconds": limit}),
        lambda: json_body({"target_text": text, "max_seconds": limit, "seed": text[:5], "speed": None}),
        lambda: json_body({"target_text": [[text]], "max_seconds": [1], "reference_wav": [[1e99, 0]]}),
        lambda: json_body(
            {"inputs": [{"name": "target_text", "shape": [1], "datatype": "BYTES", "data": [text]}]}
        ),
        lambda: json_body([text]),
        lambda: b'{"target_text": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        lambda: json_body({"target_text": text[:100], "max_seconds": limit})[:-7],
        lambda: data,
        lambda: b"",
        lambda: struct.pack("<I", 5) + b"Hello",
    )
    return f"/v2/models/{model}/{way}", bodies[number % len(bodies)]()


async def settle(url: str, watched: Watched | None, before: Reading | None) -> list[str]:
    """What is still wrong some seconds after the last request: streams open, rows in use, processes replaced."""
    faults = []
    async with AsyncTTSClient(url) as client:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            status = await client.ping()
            rows = watched.reading().rows if watched else 0
            if not (status.active or rows):
                break
            if time.monotonic() > deadline:
                faults.append(f"{status.active} streams are still open and {rows} rows in use")
                break
            await asyncio.sleep(0.1)
        utterance = await client.say("Good morning.", seed=1)
        if utterance.finish_reason != "stop":
            faults.append(f"the last request ended with {utterance.finish_reason}")
    if watched and before:
        now = watched.reading().processes
        for name, process in before.processes.items():
            if name not in now or now[name].pid != process.pid:
                faults.append(f"{name} has died (process {process.pid})")
    return faults


def to_document(report: FuzzReport, leaked: int | None) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "environment": environment.describe(),
        "plan": vars(report.plan),
        "wall_seconds": report.wall_seconds,
        "endings": {kind: dict(counts) for kind, counts in report.endings.items()},
        "examples": report.examples,
        "faults": report.faults,
        "leaked_requests": leaked,
        "before": report.before.to_dict() if report.before else None,
        "after": report.after.to_dict() if report.after else None,
    }


def print_report(report: FuzzReport, leaked: int | None) -> None:
    """As Markdown, for docs/reliability.md."""
    print(f"{report.plan.requests} requests in {report.wall_seconds:.0f} s, seed {report.plan.seed}\n")
    print("| mischief | requests | ended with |\n|---|---|---|")
    for kind, counts in sorted(report.endings.items()):
        told = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"| {kind} | {counts.total()} | {told} |")
    print()
    if report.witness is not None:
        witness = report.witness
        ttfp = witness.ttfp_seconds
        print(
            f"Witness: {witness.requests} utterances beside, continuous {witness.continuity.hits} of "
            f"{witness.continuity.total}, first audio p50 {1000 * (ttfp.p50 or 0):.0f} ms, "
            f"max {1000 * (ttfp.max or 0):.0f} ms."
        )
    if leaked is not None:
        print(f"Requests that Triton still held at its end: {leaked}.")
    print(f"Faults: {len(report.faults)}.")
    for fault in report.faults[:20]:
        print(f"- {fault}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./tritone bench fuzz", description=__doc__)
    parser.add_argument("--url", metavar="HOST:PORT", help="a running server; else one is started and ended")
    parser.add_argument("--http-port", type=int, default=8000, help="of the server at --url (8000)")
    parser.add_argument("--requests", type=int, default=10_000, help="(10000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first request (0)")
    parser.add_argument("--parallel", type=int, default=12, help="requests at a time (12)")
    parser.add_argument("--seed", type=int, default=1, help="(1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    options = parser.parse_args(arguments)
    plan = FuzzPlan(options.requests, options.first, options.parallel, options.seed)
    print(environment.headline(), "\n")
    watched = None
    with ExitStack() as stack:
        bar = stack.enter_context(Bar())
        if options.url:
            url, http = options.url, (options.url.rpartition(":")[0], options.http_port)
        else:
            changes = {"limits": {"idle_seconds": IDLE_SECONDS}}
            watched = stack.enter_context(supervised_server(changes=changes, probe_seconds=0.0))
            url, http = watched.settings.grpc_url, (watched.settings.host, watched.settings.http_port)
        report = asyncio.run(Fuzzer(url, http, plan, watched).run(bar))
    leaked = watched.leaked if watched else None
    if options.json:
        options.json.write_text(json.dumps(to_document(report, leaked), indent=1), encoding="utf-8")
    print_report(report, leaked)
    return int(bool(report.faults))

"""Runs loads against a server in rounds and turns them into points, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench.arrivals import Load
from bench.load import Job, LoadGenerator, Round
from bench.processes import Usage, cpu_between
from bench.rounds import Point, RoundReport
from bench.table import terminal
from client.trace import Trace

MakeJobs = Callable[[int, int], list[Job]]
"""(count, seed) -> that many requests; another seed gives other ones."""
ReadUsage = Callable[[], Mapping[str, Usage]]


@dataclass(frozen=True)
class Plan:
    """How much is measured a load. warmup: requests before the first round. rounds: counted ones; one more,
    the first, is run and left out if `discard_first`."""

    requests: int = 40
    warmup: int = 8
    rounds: int = 1
    discard_first: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.warmup < 0:
            raise ValueError(f"warmup is {self.warmup}; it must not be negative")


@dataclass
class Measured:
    """A point, and the traces of its counted rounds for plots and JSON."""

    point: Point
    traces: list[Trace] = field(default_factory=list)


class Bar:
    """A progress bar on the terminal; silent where there is none. A context manager."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=terminal(),
            transient=True,
            disable=not terminal().is_terminal,
        )
        self._task: TaskID | None = None

    def begin(self, label: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=total)

    def advance(self) -> None:
        if self._task is not None:
            self._progress.advance(self._task)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


async def measure_load(
    generator: LoadGenerator,
    load: Load,
    plan: Plan,
    make_jobs: MakeJobs,
    bar: Bar,
    *,
    label: str | None = None,
    read_usage: ReadUsage = dict,
) -> Measured:
    """Warm up, then run the rounds; each round has requests of its own, the same in every run of the
    bench."""
    label = label or str(load)
    discarded = int(plan.discard_first)
    bar.begin(label, plan.warmup + plan.requests * (plan.rounds + discarded))
    if plan.warmup:
        await generator.run(load, make_jobs(plan.warmup, plan.seed - 1), plan.seed, bar.advance)
    reports: list[RoundReport] = []
    traces: list[Trace] = []
    for number in range(plan.rounds + discarded):
        before = read_usage()
        done = await generator.run(
            load, make_jobs(plan.requests, plan.seed + number), plan.seed + number, bar.advance
        )
        reports.append(RoundReport.of(done, cpu_between(before, read_usage())))
        if number >= discarded:
            traces += _traces(done)
    cold = reports[0] if discarded else None
    return Measured(Point(label, load, tuple(reports[discarded:]), cold), traces)


def _traces(done: Round) -> Sequence[Trace]:
    return [outcome.trace for outcome in done.outcomes]

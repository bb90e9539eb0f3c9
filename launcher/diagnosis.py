"""What an observation of the server means: pure rules, no I/O. The supervisor acts on the verdicts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from launcher.probe import ModelDeadError, ProbeError, Pulse, SilentError, UnreachableError

CODEC_MISSES = 2  # pings in a row that call the codec dead; one may be the moment of a reload
SILENT_MISSES = 2
STRANGE_MISSES = 3
WORD_MISSES = 2


class Action(Enum):
    NONE = "nothing"
    RELOAD_TALKER = "reload talker"
    RELOAD_CODEC = "reload codec"
    RESTART = "restart the server"


@dataclass(frozen=True)
class Verdict:
    action: Action
    reason: str = ""


HEALTHY = Verdict(Action.NONE)


@dataclass
class Diagnosis:
    """Counts what went wrong in a row; one of it starts with every start of the server or a model."""

    _misses: dict[str, int] = field(default_factory=dict)

    def processes(self, living: Collection[str]) -> Verdict:
        """living: models whose process lives."""
        if "talker" not in living:
            return Verdict(Action.RELOAD_TALKER, "the talker's process is gone")
        if "codec" not in living:
            return Verdict(Action.RELOAD_CODEC, "the codec's process is gone")
        return HEALTHY

    def pinged(self, outcome: Pulse | ProbeError, loop_is_silent: bool) -> Verdict:
        """outcome: of a ping. loop_is_silent: the talker's heartbeat in the ledger is old, too."""
        if isinstance(outcome, Pulse):
            self._clear("silent", "strange", "unreachable")
            if outcome.codec_alive:
                self._clear("codec")
                return HEALTHY
            return self._miss(
                "codec", CODEC_MISSES, Action.RELOAD_CODEC, "the talker finds the codec dead or stuck"
            )
        if isinstance(outcome, ModelDeadError):
            return Verdict(Action.RELOAD_TALKER, str(outcome))
        if isinstance(outcome, SilentError):
            limit = 1 if loop_is_silent else SILENT_MISSES
            return self._miss("silent", limit, Action.RELOAD_TALKER, f"the talker is stuck: {outcome}")
        if isinstance(outcome, UnreachableError):
            return self._miss("unreachable", STRANGE_MISSES, Action.RESTART, str(outcome))
        return self._miss("strange", STRANGE_MISSES, Action.RELOAD_TALKER, str(outcome))

    def spoke(self, failure: ProbeError | None) -> Verdict:
        """failure: why the word that an idle server was asked for did not come."""
        if failure is None:
            self._clear("word")
            return HEALTHY
        return self._miss("word", WORD_MISSES, Action.RESTART, f"no word can be spoken: {failure}")

    def _miss(self, kind: str, limit: int, action: Action, reason: str) -> Verdict:
        self._misses[kind] = self._misses.get(kind, 0) + 1
        return Verdict(action, reason) if self._misses[kind] >= limit else HEALTHY

    def _clear(self, *kinds: str) -> None:
        for kind in kinds:
            self._misses.pop(kind, None)


@dataclass
class Backoff:
    """Delay before the next attempt to bring something back: none after a quiet time, then doubling.

    first, longest: seconds. quiet: seconds of good health after which counting starts anew.
    """

    first: float = 0.5
    longest: float = 30.0
    quiet: float = 30.0
    failures: int = 0
    _last: float = float("-inf")

    def failed(self, now: float) -> float:
        """Note a failure; seconds to wait."""
        if now - self._last > self.quiet:
            self.failures = 0
        self._last = now
        self.failures += 1
        return 0.0 if self.failures == 1 else min(self.longest, self.first * 2.0 ** (self.failures - 2))

    def recovered(self, now: float) -> None:
        """Good health begins."""
        self._last = now

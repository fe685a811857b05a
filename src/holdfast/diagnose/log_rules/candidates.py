"""A possible root cause that a rule proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.core.findings import Fact, Remedy
from holdfast.core.rank_table import SourceLine
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.rank_inference import SURVIVOR_SIGNALS, find_rank
from holdfast.diagnose.log_rules.signal_causes import SignalCause, Tier
from holdfast.diagnose.logs import LoggedSignal, LogLine
from holdfast.report.evidence_summary import size_text
from holdfast.watcher.oom_messages import parse_oom_kill


@dataclass(frozen=True)
class CauseCandidate:
    """One possible root cause by name, with its tier, confidence and evidence.

    ``facts`` are derived from lines. Without ``remedies``, those of the cause apply. A ``guess``
    names the usual cause of an end without a reason.
    """

    cause: str
    tier: Tier
    confidence: float
    message: str
    lines: tuple[LogLine, ...] = ()
    rank: int | None = None
    host: str = ""
    place: SourceLine | None = None
    facts: tuple[Fact, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    guess: bool = False

    @property
    def order(self) -> tuple[int, float, float, str, str]:
        """Sort key: tier, confidence, time. The smallest is the likeliest root cause."""
        time = next((line.time for line in self.lines if line.time is not None), float("inf"))
        return int(self.tier), -self.confidence, time, self.cause, self.message


#: A rule yields candidates from the facts of all logs.
Rule = Callable[[LogIndex], Iterable[CauseCandidate]]


def lines_of(signals: Sequence[LoggedSignal], limit: int | None = None) -> tuple[LogLine, ...]:
    """Return the lines of the signals, at most ``limit``."""
    return tuple(signal.line for signal in signals[:limit])


def candidate_of(
    index: LogIndex, meaning: SignalCause, signals: Sequence[LoggedSignal]
) -> CauseCandidate:
    """Return the candidate of ``signals`` that indicate one cause."""
    host = signals[0].line.host
    rank = find_rank(index, signals)
    who = f"rank {rank}: " if rank is not None else ""
    is_of_peer = signals[0].name in SURVIVOR_SIGNALS  # not the host that reports it
    where = f"{', reported by' if is_of_peer else ' on'} {host}" if host and rank is None else ""
    return CauseCandidate(
        meaning.cause,
        meaning.tier,
        meaning.confidence,
        f"{who}{meaning.sentence}{where}{_describe_oom_victim(signals)}",
        lines_of(signals),
        rank,
        "" if is_of_peer else host,
    )


def _describe_oom_victim(signals: Sequence[LoggedSignal]) -> str:
    """Return which process the kernel's OOM killer ended, and its memory; empty if not logged."""
    kills = (parse_oom_kill(one.line.text) for one in signals if one.name == "oom-killer")
    victim = next((kill for kill in kills if kill is not None and kill.resident), None)
    if victim is None:
        return ""
    limit = "; its cgroup memory limit was reached" if victim.cgroup else ""
    name, memory = victim.name or "process", size_text(victim.resident or 0)
    return f": {name} ({victim.pid}) had {memory} resident{limit}"

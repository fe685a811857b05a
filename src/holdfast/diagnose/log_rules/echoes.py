"""Lines that cannot have begun the failure: echoes of an end, and what training overcame.

A process that aborts, and ranks that a launcher ends, print errors of their own: exceptions of
handlers, lost connections, workers that were killed. And a fault after which the ranks made further
steps was no end. Such lines are left out where others show the root cause; otherwise they are the
best evidence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.causes import by_name
from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.diagnose.log_rules.exceptions import is_launchers
from holdfast.diagnose.log_rules.log_index import (
    FATAL,
    MIN_STEPS_AFTER,
    LogIndex,
    is_ended_by_kernel,
    is_later,
    position,
)
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LogFacts, LoggedSignal, LoggedTraceback, LogLine

#: A process prints why it aborts in this many lines after it began to.
ABORT_REPORT_LINES = 8
#: A rank's own error; errors of the network follow the end of any rank. Signals that end a process
#: are often reported by the launcher, after the end.
_OWN_TIERS = frozenset({Tier.NAMED, Tier.DEVICE, Tier.EXCEPTION})
_PEER_TIERS = frozenset({Tier.NETWORK, Tier.LOST})
#: Of these a machine's fault is not overcome by steps (its effect may come later), and an end never
#: is.
_OVERCOME_TIERS = frozenset({Tier.NAMED, Tier.DEVICE, Tier.NETWORK, Tier.LOST, Tier.WAITING})
#: Device errors of no single cause, which rules weigh.
_WEIGHED_OWN = frozenset({"cuda-out-of-memory", "no-space"})
#: Steps that go on show nothing about causes of these: they are what is wrong.
_FAMILIES_OF_STEPS = frozenset({"NUM", "PERF"})
#: Faults of a device that may take effect later.
_FAULTS_OF_DEVICES = frozenset({GPU_FELL_OFF_BUS_XID_ECC.name})
#: Ends of all ranks, and of one.
_ENDS_OF_ALL = ("launcher-ends-ranks", "slurm-cancelled")
_END_OF_ONE = "rank-aborts"

Position = tuple[str, int]


@dataclass
class _Ends:
    """Where ranks end: line numbers by log, and by log and rank; and the first known times.

    ``aborts`` are all lines, sorted, after which a process prints why it aborts.
    """

    of_all: dict[str, int] = field(default_factory=dict)
    of_one: dict[tuple[str, int | None], int] = field(default_factory=dict)
    of_any: dict[str, int] = field(default_factory=dict)
    aborts: dict[str, list[LogLine]] = field(default_factory=dict)
    first: LogLine | None = None
    first_of_all: LogLine | None = None

    def add(self, line: LogLine, *, of_all: bool) -> None:
        """Add the first end of a log or rank."""
        self.of_any[line.source] = min(line.number, self.of_any.get(line.source, line.number))
        self.first = _earlier(self.first, line)
        if of_all:
            self.of_all.setdefault(line.source, line.number)
            self.first_of_all = _earlier(self.first_of_all, line)
        else:
            self.of_one.setdefault((line.source, line.rank), line.number)

    def precede(self, line: LogLine, tier: Tier) -> bool:
        """Return whether ``line`` may be an echo of one of them."""
        if _is_above(self.of_all.get(line.source), line):
            return True
        if self._is_abort_report(line):
            return False
        first = self.first_of_all
        start = self.of_one.get((line.source, line.rank))
        if tier in _PEER_TIERS:
            start, first = self.of_any.get(line.source), self.first
        if _is_above(start, line):
            return True
        return first is not None and first.source != line.source and is_later(line, first) is True

    def _is_abort_report(self, line: LogLine) -> bool:
        aborts = self.aborts.get(line.source, [])
        last = bisect_left(aborts, line.number, key=lambda one: one.number) - 1
        if last < 0 or line.number - aborts[last].number > ABORT_REPORT_LINES:
            return False
        return None in (line.rank, aborts[last].rank) or line.rank == aborts[last].rank


def echo_positions(index: LogIndex) -> frozenset[Position]:
    """Return the lines that follow an end on the same timeline, except reports about it."""
    ends = _find_ends(index)
    return frozenset(
        (line.source, line.number)
        for line, tier in _lines_with_tiers(index)
        if ends.precede(line, tier)
    )


def overcome_positions(index: LogIndex) -> frozenset[Position]:
    """Return the lines after which their rank made further steps.

    The last line of a traceback is not one: it is printed at once, and steps before it may appear
    later, when the process ends and its buffer is written. Unless the line was logged, or says that
    the job tries again.
    """
    reported = {position(signal) for signal in index.all("retried", "logged-error")}
    uncaught = {_place(one) for one in index.facts.tracebacks if one.header} - reported
    return frozenset(
        position(signal)
        for signal in index.facts.signals
        if _can_be_overcome(signal)
        and position(signal) not in uncaught
        and index.continues_after(signal.line, steps=MIN_STEPS_AFTER)
    )


def without_lines(facts: LogFacts, left_out: frozenset[Position]) -> LogFacts:
    """Return the facts without the signals and tracebacks of these lines."""
    return replace(
        facts,
        signals=tuple(one for one in facts.signals if position(one) not in left_out),
        tracebacks=tuple(one for one in facts.tracebacks if _place(one) not in left_out),
    )


def is_survived(index: LogIndex, cause: str, lines: Sequence[LogLine]) -> bool:
    """Return whether training went on after all ``lines``, and they are not about its steps.

    Steps before a later end show nothing: the line may be of that end, and they of a late buffer.
    After a fault of a device, which may take effect later, or the end of a process that only the
    kernel names, only a finished training shows it. Tests that pass provoke failures of any kind.
    """
    names = (*_ENDS_OF_ALL, _END_OF_ONE, *FATAL)
    ends = (
        one.line
        for one in index.facts.signals
        if one.name in names and str(one.fields.get("code")) != "0"
    )
    return index.are_in_passed_tests(lines) or (
        bool(lines)
        and by_name(cause).family not in _FAMILIES_OF_STEPS
        and all(index.continues_after(line, steps=MIN_STEPS_AFTER) for line in lines)
        and all(index.continues_after(line, steps=MIN_STEPS_AFTER) for line in ends)
        and (
            index.finishes_after(lines)
            or not (cause in _FAULTS_OF_DEVICES or any(map(is_ended_by_kernel, lines)))
        )
    )


def _find_ends(index: LogIndex) -> _Ends:
    """Return the ends; further steps show that a line was none: the job was restarted."""
    ends, found = _Ends(), set[tuple[str, int | None, bool]]()
    for signal in index.facts.signals:
        of_all, line = signal.name in _ENDS_OF_ALL, signal.line
        if not of_all and signal.name != _END_OF_ONE:
            continue
        if not of_all:
            ends.aborts.setdefault(line.source, []).append(line)
        key = line.source, None if of_all else line.rank, of_all
        if key not in found and not index.continues_after(line, steps=1):
            found.add(key)
            ends.add(line, of_all=of_all)
    return ends


def _lines_with_tiers(index: LogIndex) -> Iterator[tuple[LogLine, Tier]]:
    """Yield the lines that may be echoes."""
    for signal in index.facts.signals:
        meaning = SIGNAL_CAUSES.get(signal.name)
        if signal.name in _WEIGHED_OWN:
            yield signal.line, Tier.DEVICE
        elif meaning is not None and meaning.tier in _OWN_TIERS | _PEER_TIERS:
            yield signal.line, meaning.tier
    for one in index.facts.tracebacks:
        if not is_launchers(one):
            yield one.line, Tier.EXCEPTION


def _is_above(number: int | None, line: LogLine) -> bool:
    return number is not None and line.number > number


def _earlier(one: LogLine | None, other: LogLine) -> LogLine | None:
    if other.time is None:
        return one
    return other if one is None or is_later(one, other) is True else one


def _can_be_overcome(signal: LoggedSignal) -> bool:
    if signal.name in _WEIGHED_OWN:
        return signal.name not in FATAL
    meaning = SIGNAL_CAUSES.get(signal.name)
    return meaning is not None and meaning.tier in _OVERCOME_TIERS and signal.name not in FATAL


def _place(one: LoggedTraceback) -> Position:
    return one.line.source, one.line.number

"""Keep the first and last of repeated signals, and merge the facts of several logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.diagnose.logs import LogFacts, LoggedRank, LoggedSignal, LoggedTraceback, LogLine
from holdfast.diagnose.logs.samples import MAX_LOGS

#: Signals of one name and rank that are kept from the start and from the end.
KEPT_FIRST, KEPT_LAST = 16, 48
#: Above this number of (name, rank) pairs, fewer are kept of each, to bound memory.
MANY_PAIRS, KEPT_FIRST_OF_MANY, KEPT_LAST_OF_MANY = 2048, 1, 3
#: Tracebacks kept, half of them from the start; thousands of ranks print thousands alike.
MAX_TRACEBACKS = 256


class BoundedSignals:
    """Number signals in the order of arrival; keep the first and last of each name and rank."""

    def __init__(self) -> None:
        #: By name and rank: of the first pairs, and of those above MANY_PAIRS.
        self._early: dict[str, dict[int | None, list[LoggedSignal]]] = {}
        self._late: dict[str, dict[int | None, list[LoggedSignal]]] = {}
        self._pairs = self._order = 0

    def add(self, name: str, line: LogLine, fields: dict[str, str | int | float]) -> None:
        """Add the next signal."""
        signal = LoggedSignal(name, line, fields, self._order)
        self._order += 1
        first, last = KEPT_FIRST, KEPT_LAST
        kept = self._early.get(name, {}).get(line.rank)
        if kept is None and self._pairs > MANY_PAIRS:
            first, last = KEPT_FIRST_OF_MANY, KEPT_LAST_OF_MANY
            kept = self._late.get(name, {}).get(line.rank)
        if kept is None:
            signals = self._early if self._pairs <= MANY_PAIRS else self._late
            signals.setdefault(name, {})[line.rank] = [signal]
            self._pairs += 1
            return
        kept.append(signal)
        if len(kept) > first + last:
            del kept[first]

    def all(self) -> tuple[LoggedSignal, ...]:
        """Return the kept signals in order."""
        by_rank = (*self._early.values(), *self._late.values())
        signals = (signal for ranks in by_rank for kept in ranks.values() for signal in kept)
        return tuple(sorted(signals, key=lambda signal: signal.order))


def merge_facts(parts: Iterable[LogFacts]) -> LogFacts:
    """Return the facts of several logs as if they had been read one after the other."""
    kept, ranks = BoundedSignals(), dict[int, LoggedRank]()
    whole = LogFacts()
    for part in parts:
        for signal in part.signals:
            kept.add(signal.name, signal.line, signal.fields)
        for rank, later in part.ranks.items():
            ranks[rank] = _merge_rank(ranks[rank], later) if rank in ranks else later
        whole = replace(
            whole,
            tracebacks=first_and_last((*whole.tracebacks, *part.tracebacks)),
            world_size=max(whole.world_size or 0, part.world_size or 0) or None,
            hosts=whole.hosts | part.hosts,
            samples=(*whole.samples, *part.samples)[:MAX_LOGS],
            last=part.last or whole.last,
            lines=whole.lines + part.lines,
            bytes=whole.bytes + part.bytes,
        )
    return replace(whole, signals=kept.all(), ranks=ranks)


def first_and_last(tracebacks: Sequence[LoggedTraceback]) -> tuple[LoggedTraceback, ...]:
    """Return ``tracebacks`` without those in the middle that exceed ``MAX_TRACEBACKS``."""
    half = MAX_TRACEBACKS // 2
    return (*tracebacks[:half], *tracebacks[half:][-half:])


def _merge_rank(earlier: LoggedRank, later: LoggedRank) -> LoggedRank:
    return LoggedRank(
        rank=earlier.rank,
        host=later.host or earlier.host,
        lines=earlier.lines + later.lines,
        last=later.last or earlier.last,
        enqueued={**earlier.enqueued, **later.enqueued},
        completed={**earlier.completed, **later.completed},
        exit_code=earlier.exit_code if later.exit_code is None else later.exit_code,
    )

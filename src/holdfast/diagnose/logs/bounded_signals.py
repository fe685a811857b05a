"""Keep the first and last of repeated signals, and merge the facts of several logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.diagnose.logs import LogFacts, LoggedRank, LoggedSignal, LoggedTraceback
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
        self._pairs: dict[tuple[str, int | None], _FirstAndLast] = {}
        self._order = 0

    def add(self, signal: LoggedSignal) -> None:
        """Add the next signal and set its ``order``."""
        key = (signal.name, signal.line.rank)
        if key not in self._pairs:
            self._pairs[key] = _FirstAndLast(many=len(self._pairs) > MANY_PAIRS)
        self._pairs[key].add(LoggedSignal(signal.name, signal.line, signal.fields, self._order))
        self._order += 1

    def all(self) -> tuple[LoggedSignal, ...]:
        """Return the kept signals in order."""
        signals = [signal for pair in self._pairs.values() for signal in pair]
        return tuple(sorted(signals, key=lambda signal: signal.order))


class _FirstAndLast:
    """The first and the last signals of one name and rank."""

    __slots__ = ("_first", "_last", "_many")

    def __init__(self, *, many: bool) -> None:
        self._many = many
        self._first: list[LoggedSignal] = []
        self._last: deque[LoggedSignal] | None = None

    def add(self, signal: LoggedSignal) -> None:
        if len(self._first) < (KEPT_FIRST_OF_MANY if self._many else KEPT_FIRST):
            self._first.append(signal)
            return
        if self._last is None:
            self._last = deque(maxlen=KEPT_LAST_OF_MANY if self._many else KEPT_LAST)
        self._last.append(signal)

    def __iter__(self) -> Iterator[LoggedSignal]:
        yield from self._first
        yield from self._last or ()


def merge_facts(parts: Iterable[LogFacts]) -> LogFacts:
    """Return the facts of several logs as if they had been read one after the other."""
    kept, ranks = BoundedSignals(), dict[int, LoggedRank]()
    whole = LogFacts()
    for part in parts:
        for signal in part.signals:
            kept.add(signal)
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

"""Of what logs say again and again, the first and the last is kept; so facts of many logs become one, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from holdfast.facts.logs import LogFacts, LoggedRank, Signal

#: Of signals with one name and rank, so many are kept from the start and so many from the end.
KEPT_FIRST, KEPT_LAST = 16, 48
#: After so many pairs of name and rank only this many of each: memory does not grow with the number of ranks for long.
MANY_PAIRS, KEPT_FIRST_OF_MANY, KEPT_LAST_OF_MANY = 2048, 1, 3
#: Tracebacks kept; a job of thousands of ranks prints thousands that are alike.
MOST_TRACEBACKS = 256


class KeptSignals:
    """Takes signals as they come and numbers them."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, int | None], _Pair] = {}
        self._order = 0

    def add(self, signal: Signal) -> None:
        """The next signal, whose ``order`` is given here."""
        key = (signal.name, signal.line.rank)
        if key not in self._pairs:
            self._pairs[key] = _Pair(many=len(self._pairs) > MANY_PAIRS)
        self._pairs[key].add(Signal(signal.name, signal.line, signal.fields, self._order))
        self._order += 1

    def all(self) -> tuple[Signal, ...]:
        """Those that were kept, in their order."""
        signals = [signal for pair in self._pairs.values() for signal in pair.all()]
        return tuple(sorted(signals, key=lambda signal: signal.order))


class _Pair:
    """Signals of one name and rank: the first and the last of them."""

    def __init__(self, *, many: bool) -> None:
        self._most = KEPT_FIRST_OF_MANY if many else KEPT_FIRST
        self._first: list[Signal] = []
        self._last: deque[Signal] = deque(maxlen=KEPT_LAST_OF_MANY if many else KEPT_LAST)

    def add(self, signal: Signal) -> None:
        (self._first if len(self._first) < self._most else self._last).append(signal)

    def all(self) -> Iterator[Signal]:
        """In the order in which they came."""
        yield from self._first
        yield from self._last


def merge(parts: Iterable[LogFacts]) -> LogFacts:
    """The facts of several logs, as if they had been read one behind the other."""
    kept, ranks = KeptSignals(), dict[int, LoggedRank]()
    whole = LogFacts()
    for part in parts:
        for signal in part.signals:
            kept.add(signal)
        for rank, later in part.ranks.items():
            ranks[rank] = _joined(ranks[rank], later) if rank in ranks else later
        whole = replace(
            whole, tracebacks=(*whole.tracebacks, *part.tracebacks)[:MOST_TRACEBACKS],
            world_size=max(whole.world_size or 0, part.world_size or 0) or None, hosts=whole.hosts | part.hosts,
            last=part.last or whole.last, lines=whole.lines + part.lines, bytes=whole.bytes + part.bytes,
            unseen=(*whole.unseen, *part.unseen),
        )  # fmt: skip
    return replace(whole, signals=kept.all(), ranks=ranks)


def _joined(known: LoggedRank, later: LoggedRank) -> LoggedRank:
    return LoggedRank(
        rank=known.rank, host=later.host or known.host, lines=known.lines + later.lines, last=later.last or known.last,
        enqueued={**known.enqueued, **later.enqueued}, completed={**known.completed, **later.completed},
        exit_code=known.exit_code if later.exit_code is None else later.exit_code,
    )  # fmt: skip

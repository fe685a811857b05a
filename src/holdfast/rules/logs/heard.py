"""What a rule over logs is given, and what it offers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from holdfast.facts.logs import Line, LogFacts, Signal
from holdfast.facts.ranks import Place
from holdfast.findings import Fact, Remedy
from holdfast.rules.logs.meanings import Tier

#: Lines that say one of these make whatever else stands in them harmless.
NOISE = "noise-"
#: Ray lists what may have killed a worker; where it does, these were not seen.
GUESSED = frozenset({"oom-killer", "killed", "segfault"})


@dataclass(frozen=True)
class Candidate:
    """One possible root: its cause by name, how near to the root, how sure, and what it rests on.

    ``facts`` are what was made of lines; without ``remedies`` those of the cause are given.
    """

    cause: str
    tier: Tier
    confidence: float
    message: str
    lines: tuple[Line, ...] = ()
    rank: int | None = None
    host: str = ""
    place: Place | None = None
    facts: tuple[Fact, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def order(self) -> tuple[int, float, float]:
        """The smaller, the likelier the root."""
        time = next((line.time for line in self.lines if line.time is not None), None)
        return int(self.tier), -self.confidence, time if time is not None else float("inf")


class Heard:
    """The signals of a heap of logs, by name."""

    def __init__(self, facts: LogFacts) -> None:
        self.facts = facts
        harmless = {place(signal) for signal in facts.signals if signal.name.startswith(NOISE)}
        guesses = {place(signal) for signal in facts.signals if signal.name == "guesses"}
        self._named: dict[str, list[Signal]] = {}
        for signal in facts.signals:
            if place(signal) not in harmless and not (signal.name in GUESSED and place(signal) in guesses):
                self._named.setdefault(signal.name, []).append(signal)

    def all(self, *names: str) -> list[Signal]:
        """The signals with one of these names, in the order in which they were read."""
        found = [signal for name in names for signal in self._named.get(name, ())]
        return sorted(found, key=lambda signal: signal.order)

    def first(self, *names: str) -> Signal | None:
        """The first of them."""
        return next(iter(self.all(*names)), None)

    def ranks(self, *names: str) -> set[int]:
        """The ranks that said one of these."""
        return {signal.line.rank for signal in self.all(*names) if signal.line.rank is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def after(self, signal: Signal, *names: str) -> list[Signal]:
        """Those that came later in the same log."""
        return [one for one in self.all(*names) if one.order > signal.order]

    @property
    def first_failed(self) -> int | None:
        """The rank that torchrun lists as the one that failed first, the earliest of all nodes: a witness, no more."""
        told = []
        for marker in self.all("root-marker"):
            ranks, times = self.after(marker, "failed-rank"), self.after(marker, "failed-time")
            if ranks:
                told.append(
                    (str(times[0].fields["time"]) if times else "", ranks[0].order, int(ranks[0].fields["rank"]))
                )
        return min(told)[2] if told else None

    @property
    def failed_local_rank(self) -> int | None:
        """The process that torchrun saw fail, by its number on the node; None where several nodes, or none, tell."""
        local = {int(signal.fields["local_rank"]) for signal in self.all("exit-code")}
        return local.pop() if len(local) == 1 else None

    def first_failed_of(self, ranks: Collection[int | None]) -> int | None:
        """The rank that torchrun saw fail first; on one node its local rank, where that is one of ``ranks``."""
        local = self.failed_local_rank if len(self.facts.hosts) <= 1 else None
        return self.first_failed if self.first_failed is not None else local if local in ranks else None

    @property
    def failed_ranks(self) -> set[int]:
        """The ranks that a launcher says failed; those that it ended itself (SIGTERM) did not."""
        return {rank.rank for rank in self.facts.ranks.values() if rank.exit_code not in (None, 0, -15)}


def place(signal: Signal) -> tuple[str, int]:
    """The line that a signal stands in."""
    return signal.line.source, signal.line.number


def first_to_speak(lines: Iterable[Line]) -> int | None:
    """The rank whose line came first: by time where each line tells one, by its number in a log that all share.

    Nothing orders the lines of several logs without times: the lowest rank stands for them.
    """
    told = [line for line in lines if line.rank is not None]
    if told and all(line.time is not None for line in told):
        return min(told, key=lambda line: (line.time or 0.0, line.number)).rank
    if len({line.source for line in told}) == 1:
        return min(told, key=lambda line: line.number).rank
    return min((line.rank for line in told if line.rank is not None), default=None)


Rule = Callable[[Heard], Iterable[Candidate]]

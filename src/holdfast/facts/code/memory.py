"""What functions did, by context, kept from round to round: forgotten is what read something that changed later.

What a run of a function depends on are its arguments, which its context holds, the attributes and variables that it
read, and the runs of those that it called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.facts.code.effects import Place, Way
from holdfast.facts.code.frames import Summary
from holdfast.facts.code.modules import Function
from holdfast.facts.code.partings import Parting

#: A name that no attribute has: whether a class's instances are sharded.
SHARDED = "<sharded>"
#: And what they hold as containers, by key.
ITEMS = "<items>"
#: The owner of an attribute or variable, and its name.
Read = tuple[object, str]


@dataclass(eq=False, slots=True)
class Run:
    """A function that ran in one context, whom it called, and what it found; the top of it all has no function.

    ``round`` is the last one in which it ran, or somebody had its ``summary`` from here.
    """

    function: Function | None
    round: int
    summary: Summary | None = None
    calls: set[Run] = field(default_factory=set)
    found: dict[tuple[str, Place], Parting] = field(default_factory=dict)
    threads: list[tuple[Place, Way]] = field(default_factory=list)


class Memory:
    """The runs so far, and the one that runs ``now``."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run] = {}
        self._readers: dict[Read, set[Run]] = defaultdict(set)
        self._stale: set[Run] = set()
        self._round = 0
        self.now = Run(None, 0)

    @property
    def changed(self) -> bool:
        """Somebody read what changed afterwards: another round is due."""
        return bool(self._stale)

    def get(self, key: Hashable) -> Summary | None:
        """What was done in this context."""
        run = self._runs.get(key)
        if run is None:
            return None
        self.now.calls.add(run)
        self._use(run)
        return run.summary

    def _use(self, run: Run) -> None:
        """It counts in this round, and so does all that it called."""
        waiting = [run]
        while waiting:
            run = waiting.pop()
            if run.round != self._round:
                run.round = self._round
                if run.function is not None:
                    run.function.seen += 1
                waiting.extend(run.calls)

    @contextmanager
    def run(self, key: Hashable, function: Function) -> Iterator[Run]:
        """Something runs in this context; its ``summary`` is set inside."""
        caller, run = self.now, Run(function, self._round)
        function.seen += 1
        self.now = run
        try:
            yield run
        finally:
            self.now = caller
        caller.calls.add(run)
        self._runs[key] = run

    def read(self, owner: object, name: str) -> None:
        """An attribute or variable was asked for, whether it is there or not."""
        self._readers[owner, name].add(self.now)

    def wrote(self, owner: object, name: str) -> None:
        """It is another one from here on."""
        readers = self._readers.pop((owner, name), None)
        if readers:
            self._stale |= readers

    def begin(self) -> None:
        """The next round: what read something that changed, and all that called it, is forgotten."""
        callers: dict[Run, list[Run]] = defaultdict(list)
        for run in self._runs.values():
            for called in run.calls:
                callers[called].append(run)
        waiting = list(self._stale)
        while waiting:
            for caller in callers.pop(waiting.pop(), ()):
                if caller not in self._stale:
                    self._stale.add(caller)
                    waiting.append(caller)
        self._runs = {key: run for key, run in self._runs.items() if run not in self._stale}
        for readers in self._readers.values():
            readers.difference_update(self._stale)
        self._stale = set()
        self._round += 1
        self.now = Run(None, self._round)

    @property
    def runs(self) -> Iterator[Run]:
        """Those that count in this round."""
        yield from (run for run in self._runs.values() if run.round == self._round)
        yield self.now

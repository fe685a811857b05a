"""Summaries of functions by context, kept over rounds and dropped when an input changes.

A run depends on its arguments (part of the context), the attributes and variables it read, and the
runs of the functions it called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import EffectPath
from holdfast.lint.abstract_state.frames import FunctionSummary
from holdfast.lint.sources.modules import Function

#: Pseudo-attribute: whether a class's instances are sharded.
SHARDED = "<sharded>"
#: Pseudo-attribute: the entries of a container class, by key.
ITEMS = "<items>"
#: The owner of an attribute or variable, and its name.
AttributeKey = tuple[object, str]


@dataclass(eq=False, slots=True)
class FunctionRun:
    """A function run in one context, its callees and divergences; module level has no function.

    ``round`` is the last round in which it ran or its ``summary`` was used.
    """

    function: Function | None
    round: int
    summary: FunctionSummary | None = None
    callees: set[FunctionRun] = field(default_factory=set)
    divergences: dict[tuple[str, SourceLine], Divergence] = field(default_factory=dict)
    threads: list[tuple[SourceLine, EffectPath]] = field(default_factory=list)


class SummaryCache:
    """The runs so far, and the ``current`` one."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, FunctionRun] = {}
        self._readers: dict[AttributeKey, set[FunctionRun]] = defaultdict(set)
        self._stale: set[FunctionRun] = set()
        self._round = 0
        self.current = FunctionRun(None, 0)

    @property
    def is_stale(self) -> bool:
        """Return True if a run read something that changed later: another round is needed."""
        return bool(self._stale)

    def lookup(self, key: Hashable) -> FunctionSummary | None:
        """Return the summary for a context; None if there is none."""
        run = self._runs.get(key)
        if run is None:
            return None
        self.current.callees.add(run)
        self._use(run)
        return run.summary

    def _use(self, run: FunctionRun) -> None:
        """Mark a run and all its callees as used in this round."""
        pending = [run]
        while pending:
            run = pending.pop()
            if run.round != self._round:
                run.round = self._round
                if run.function is not None:
                    run.function.run_count += 1
                pending.extend(run.callees)

    @contextmanager
    def run(self, key: Hashable, function: Function) -> Iterator[FunctionRun]:
        """Run a function in a context; set ``summary`` inside."""
        caller, run = self.current, FunctionRun(function, self._round)
        function.run_count += 1
        self.current = run
        try:
            yield run
        finally:
            self.current = caller
        caller.callees.add(run)
        self._runs[key] = run

    def record_read(self, owner: object, name: str) -> None:
        """Record that the current run read an attribute or variable."""
        self._readers[owner, name].add(self.current)

    def record_write(self, owner: object, name: str) -> None:
        """Record a change of an attribute or variable."""
        readers = self._readers.pop((owner, name), None)
        if readers:
            self._stale |= readers

    def start_round(self) -> None:
        """Start the next round: drop runs that read a changed value, and their callers."""
        callers: dict[FunctionRun, list[FunctionRun]] = defaultdict(list)
        for run in self._runs.values():
            for called in run.callees:
                callers[called].append(run)
        pending = list(self._stale)
        while pending:
            for caller in callers.pop(pending.pop(), ()):
                if caller not in self._stale:
                    self._stale.add(caller)
                    pending.append(caller)
        self._runs = {key: run for key, run in self._runs.items() if run not in self._stale}
        for readers in self._readers.values():
            readers.difference_update(self._stale)
        self._stale = set()
        self._round += 1
        self.current = FunctionRun(None, self._round)

    @property
    def current_runs(self) -> Iterator[FunctionRun]:
        """Yield the runs used in this round."""
        yield from (run for run in self._runs.values() if run.round == self._round)
        yield self.current

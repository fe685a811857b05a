"""Summaries of functions by context, kept over rounds and dropped when an input changes.

A run depends on its arguments (part of the context), the attributes and variables it read, and the
runs of the functions it called. Of the facts that hold at a call and of the names that are created
there, it depends on those only whose names it used: a call in which these are the same uses the
summary of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import EffectPath, EffectSummary
from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.frames import FunctionSummary
from holdfast.lint.abstract_state.heap import apply_change
from holdfast.lint.sources.modules import Class, Function

#: Pseudo-attribute: whether a class's instances are sharded.
SHARDED = "<sharded>"
#: Pseudo-attribute: the entries of a container class, by key.
ITEMS = "<items>"
#: The name for whether any name is created at a call.
ANY_CREATED = "<created>"
#: The owner of an attribute or variable, and its name.
AttributeKey = tuple[object, str]


class Context(msgspec.Struct, frozen=True, eq=False):
    """What distinguishes the runs of a function: the ``key``, and what few functions depend on.

    These are the ``facts`` that hold at the call, and the names ``created`` there because they are
    missing. ``whole_key`` identifies them, too.
    """

    key: int
    whole_key: int
    facts: Value
    created: frozenset[str]

    def differing_names(self, other: Context) -> Iterator[str]:
        """Yield the names of facts and of created names that are not the same."""
        if self.created != other.created:
            yield from self.created ^ other.created
            if not (self.created and other.created):
                yield ANY_CREATED
        old, new = self.facts.objects[0].facts, other.facts.objects[0].facts
        if old is not new:
            yield from (key[1] for key in {**old, **new} if old.get(key) != new.get(key))


@dataclass(eq=False, slots=True)
class FunctionRun:
    """A function run in one context, its callees and divergences; module level has no function.

    ``round`` is the last round in which it ran or its ``summary`` was used; ``key`` its context,
    and ``again`` runs the function in that context. ``stale``: it read what has changed.
    ``used_names``: the names of facts and created names that it read or wrote, of the first
    ``known_names`` that there are.
    """

    function: Function | None
    round: int
    key: int = -1
    again: Callable[[], object] | None = None
    stale: bool = False
    context: Context | None = None
    known_names: int = 0
    used_names: set[str] = field(default_factory=set)
    summary: FunctionSummary | None = None
    callees: dict[FunctionRun, None] = field(default_factory=dict)
    divergences: dict[tuple[str, SourceLine], Divergence] = field(default_factory=dict)
    threads: list[tuple[SourceLine, EffectPath]] = field(default_factory=list)


class SummaryCache:
    """The runs so far, and the ``current`` one.

    ``names`` are those that may be created because they are missing; others are added when seen.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._runs: dict[int, FunctionRun] = {}
        self._alike: dict[int, dict[int, FunctionRun]] = defaultdict(dict)
        self._names: dict[str, int] = dict.fromkeys((ANY_CREATED, *names), 0)
        self._names_of_facts: dict[int, tuple[Value, frozenset[str], int]] = {}
        self._readers: dict[AttributeKey, set[FunctionRun]] = defaultdict(set)
        self._stale: set[FunctionRun] = set()
        self._outdated: set[FunctionRun] = set()
        self._affected: dict[int, FunctionRun] = {}
        self._old: dict[int, FunctionRun] = {}
        self._checking: set[int] = set()
        self._is_cyclic = False
        self._round = 0
        self.current = FunctionRun(None, 0)

    @property
    def is_stale(self) -> bool:
        """Return True if a run read something that changed later: another round is needed."""
        return any(
            run.function is None or self._runs.get(run.key) is run
            for run in (*self._stale, *self._outdated)
        )

    def number(self, key: Hashable) -> int:
        """Return a number for a key, whose hash is costly."""
        return self._numbers.setdefault(key, len(self._numbers))

    def lookup(self, context: Context) -> FunctionSummary | None:
        """Return the summary for a context; None if there is none."""
        for name in context.created:
            self._add_name(name)
        key = context.whole_key
        run = self._runs.get(key) or self._confirmed(key)
        if run is not None:
            self._call(run)
            return run.summary
        for run in list(self._alike.get(context.key, {}).values()):
            if run.context is not None and self._is_same_for(run, context, run.context):
                found = self._runs.get(run.key) or self._confirmed(run.key)
                if found is not None and found.summary is not None:
                    self._call(found)
                    return _rebase(found.summary, run.context.facts, context.facts)
        return None

    def _call(self, run: FunctionRun) -> None:
        """Record that the current run calls another."""
        self.current.callees[run] = None
        self.current.used_names |= run.used_names
        self._use(run)

    def _is_same_for(self, run: FunctionRun, context: Context, own: Context) -> bool:
        """Return True if the run used nothing that is different in another context."""
        if context.created == own.created:  # often, it used no fact at all
            names, newest = self._fact_names(context.facts)
            if newest < run.known_names and run.used_names.isdisjoint(names):
                return run.used_names.isdisjoint(self._fact_names(own.facts)[0])
        return all(
            name not in run.used_names and self._names.get(name, 0) < run.known_names
            for name in own.differing_names(context)
        )

    def _fact_names(self, facts: Value) -> tuple[frozenset[str], int]:
        """Return the names that facts are about, and the number of the newest one."""
        key = id(facts)
        known = self._names_of_facts.get(key)
        if known is None:
            names = frozenset(name for _, name in facts.objects[0].facts)
            newest = max((self._names.get(name, 0) for name in names), default=0)
            known = self._names_of_facts[key] = facts, names, newest
        return known[1], known[2]

    def _add_name(self, name: str) -> None:
        """Record that a fact or created name of this name exists."""
        if name not in self._names:
            self._names[name] = len(self._names)

    def record_fact(self, name: str, *, known: bool) -> None:
        """Record that the current run sets a fact about a name, or drops it."""
        if known:
            self._add_name(name)
        self.current.used_names.add(name)

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
    def run(
        self, context: Context, function: Function, again: Callable[[], object] | None
    ) -> Iterator[FunctionRun]:
        """Run a function in a context; set ``summary`` inside.

        It stays the same object if it is equal to that of the round before.
        """
        key = context.whole_key
        caller, run = self.current, FunctionRun(function, self._round, key, again)
        run.context, run.known_names = context, len(self._names)
        function.run_count += 1
        self.current = run
        try:
            yield run
        finally:
            self.current = caller
        run.used_names = {name for name in run.used_names if name in self._names}
        caller.callees[run] = None
        caller.used_names |= run.used_names
        self._runs[key] = self._alike[context.key][key] = run
        old = self._affected.pop(key, None) or self._old.get(key)
        if old is not None and _are_equal(old.summary, run.summary):
            run.summary = old.summary

    def record_read(self, owner: object, name: str) -> None:
        """Record that the current run read an attribute or variable."""
        self._readers[owner, name].add(self.current)
        self.current.used_names.add(name)

    def record_write(self, owner: object, name: str) -> None:
        """Record a change of an attribute or variable."""
        readers = self._readers.pop((owner, name), None)
        if readers and isinstance(owner, Class):
            self._stale |= readers
        elif readers:
            self._outdated |= readers

    def _confirmed(self, key: int) -> FunctionRun | None:
        """Return the run of an earlier round if nothing that it read or called has changed."""
        run = self._affected.pop(key, None)
        if run is None:
            return None
        self._checking.add(key)
        changed = run.stale or any(self._has_changed(run, called) for called in list(run.callees))
        self._checking.discard(key)
        if not self._checking:
            self._is_cyclic = False
        if changed:
            self._old[key] = run
            return None
        self._runs[key] = run
        return run

    def _has_changed(self, run: FunctionRun, called: FunctionRun) -> bool:
        """Return True if a callee has another result; it runs again if that is not known."""
        if called.key in self._checking:
            self._is_cyclic = True
            return True
        found = self._runs.get(called.key) or self._confirmed(called.key)
        if found is None and called.again is not None and not self._is_cyclic:
            caller, self.current = self.current, FunctionRun(None, self._round)
            called.again()
            self.current = caller
            found = self._runs.get(called.key)
        if found is None or found.summary is not called.summary:
            return True
        if found is not called:
            del run.callees[called]
            run.callees[found] = None
            run.used_names |= found.used_names
        return False

    def start_round(self) -> None:
        """Start the next round: runs that read a changed value are done again, as are callers.

        What was written to an attribute holds at any time, so that a caller runs again only if a
        result changes. Other values depend on the order of the program.
        """
        callers: dict[FunctionRun, list[FunctionRun]] = defaultdict(list)
        for run in self._runs.values():
            for called in run.callees:
                callers[called].append(run)
        outdated = self._with_callers(self._outdated, callers)
        affected = self._with_callers(self._stale, callers)
        runs, self._runs = self._runs, {}
        self._affected, self._old = {}, {}
        self._alike.clear()
        for key, run in runs.items():
            if run in outdated:
                continue
            if run.context is not None:
                self._alike[run.context.key][key] = run
            (self._affected if run in affected else self._runs)[key] = run
            run.stale = run in self._stale
        dropped = outdated | self._stale
        for readers in self._readers.values():
            readers.difference_update(dropped)
        self._stale, self._outdated = set(), set()
        self._round += 1
        self.current = FunctionRun(None, self._round)

    @staticmethod
    def _with_callers(
        runs: set[FunctionRun], callers: Mapping[FunctionRun, list[FunctionRun]]
    ) -> set[FunctionRun]:
        """Return runs with everything that called them."""
        found, pending = set(runs), list(runs)
        while pending:
            for caller in callers.get(pending.pop(), ()):
                if caller not in found:
                    found.add(caller)
                    pending.append(caller)
        return found

    @property
    def current_runs(self) -> Iterator[FunctionRun]:
        """Yield the runs used in this round."""
        yield from (run for run in self._runs.values() if run.round == self._round)
        yield self.current


def _rebase(summary: FunctionSummary, old: Value, new: Value) -> FunctionSummary:
    """Return a summary for other facts at the call, none of which the function uses."""
    if old is new:
        return summary
    entered = summary.entered
    return replace(
        summary,
        facts=apply_change(new, old, summary.facts),
        entered=apply_change(new, old, entered) if entered is not None else None,
    )


def _are_equal(one: FunctionSummary | None, other: FunctionSummary | None) -> bool:
    if one is None or other is None:
        return False
    return (
        one.value == other.value
        and one.mutated == other.mutated
        and one.facts == other.facts
        and one.entered == other.entered
        and _have_equal_effects(one.effects, other.effects)
    )


def _have_equal_effects(one: EffectSummary, other: EffectSummary) -> bool:
    """Return True for equal paths; those of callees are the same object if they are equal."""
    return one.sequence == other.sequence and one.tags == other.tags and one.path == other.path

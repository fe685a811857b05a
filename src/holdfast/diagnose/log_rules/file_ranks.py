"""Ranks of whole logs: each of several logs names one rank only, in lines of its own.

A rank whose output has a log of its own names itself at the start, and its traceback has no prefix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from msgspec.structs import replace

from holdfast.diagnose.logs import LogFacts, LoggedRank, LoggedSignal, LoggedTraceback, LogLine

One = TypeVar("One", LoggedSignal, LoggedTraceback)

#: Lines of launchers are about several ranks.
_OF_LAUNCHERS = frozenset(
    "exit-code failed-rank failed-code root-marker launcher-ends-ranks slurm-task".split()
)
#: A rank states its own number.
_STATEMENTS = frozenset({"process-rank"})


def attribute_files(facts: LogFacts) -> LogFacts:
    """Return the facts; lines without a rank have that of their log, if it names only one."""
    ranks = _ranks_of_files(facts)
    if len(set(ranks.values())) < 2:
        return facts

    def attribute(line: LogLine) -> LogLine:
        own = line.rank is None and line.source in ranks
        return replace(line, rank=ranks[line.source]) if own else line

    known = dict(facts.ranks)
    for line in map(attribute, _lines(facts)):
        if line.rank is not None and line.rank not in known:
            known[line.rank] = LoggedRank(rank=line.rank, host=line.host, lines=1, last=line)
    return replace(
        facts,
        signals=tuple(_with_line(one, attribute(one.line)) for one in facts.signals),
        tracebacks=tuple(_with_line(one, attribute(one.line)) for one in facts.tracebacks),
        samples=tuple(
            replace(one, rank=ranks.get(one.source) if one.rank is None else one.rank)
            for one in facts.samples
        ),
        ranks=known,
    )


def _ranks_of_files(facts: LogFacts) -> dict[str, int]:
    named: dict[str, set[int]] = defaultdict(set)
    shared = {one.line.source for one in facts.signals if one.name in _OF_LAUNCHERS}
    for line in _lines(facts):
        if line.rank is not None:
            named[line.source].add(line.rank)
    for signal in facts.signals:
        if signal.name in _STATEMENTS:
            named[signal.line.source].add(int(signal.fields["rank"]))
    return {
        source: min(ranks)
        for source, ranks in named.items()
        if len(ranks) == 1 and source not in shared
    }


def _lines(facts: LogFacts) -> Iterator[LogLine]:
    yield from (one.line for one in facts.signals)
    yield from (one.line for one in facts.tracebacks)


def _with_line(one: One, line: LogLine) -> One:
    return one if line is one.line else replace(one, line=line)

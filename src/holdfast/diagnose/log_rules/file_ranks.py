"""Ranks of lines that name none: of a log, a host or a process that is known to be one rank.

A rank whose output has a log or a pod of its own names itself at the start, and its traceback has
no prefix. The kernel and launchers report the ends of processes by pid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from msgspec.structs import replace

from holdfast.diagnose.log_rules.process_ranks import ProcessRanks
from holdfast.diagnose.logs import LogFacts, LoggedRank, LoggedSignal, LoggedTraceback, LogLine

One = TypeVar("One", LoggedSignal, LoggedTraceback)

#: Lines of launchers are about several ranks.
_OF_LAUNCHERS = frozenset(
    "exit-code failed-rank failed-code root-marker launcher-ends-ranks slurm-task".split()
)
#: A rank states its own number.
_STATEMENTS = frozenset({"process-rank"})
#: Reports of the end of a process by others.
_ENDS_OF_PROCESSES = frozenset(
    "oom-killer killed segfault crashed bus-error aborted process-ended xid node-failure".split()
)


def attribute_ranks(facts: LogFacts) -> LogFacts:
    """Return the facts; lines without a rank have that of their log, host or process."""
    processes = ProcessRanks(facts)
    ranks = _ranks_of_files(facts)
    if len(set(ranks.values())) < 2:
        ranks = {}

    pods = {_stem(source): rank for source, rank in ranks.items()}
    by_line = _ranks_of_ends(facts, processes, pods)

    def attribute(line: LogLine) -> LogLine:
        rank = by_line.get((line.source, line.number), line.rank)
        rank = ranks.get(line.source) if rank is None else rank
        rank = processes.of_host(line.host) if rank is None and line.host else rank
        return line if rank is line.rank else replace(line, rank=rank)

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


def _stem(source: str) -> str:
    """Return the name of a log without folders and suffix, which may be that of its pod."""
    return source.rsplit("/", 1)[-1].partition(".")[0]


def _ranks_of_ends(
    facts: LogFacts, processes: ProcessRanks, pods: dict[str, int]
) -> dict[tuple[str, int], int]:
    """Return the ranks of lines that report the end of a process or pod, or a fault of a GPU.

    The lines of a record below its first may lack the rank of its traceback, or of its first line.
    """
    first_lines = {
        (one.line.source, one.line.number): one.line.rank
        for one in facts.signals
        if one.name == "record-rank"
    }
    found = {
        (one.line.source, one.line.number): one.line.rank
        for one in facts.tracebacks
        if one.line.rank is not None
    }
    for one in facts.signals:
        before = one.line.source, one.line.number - 1
        rank = first_lines.get(before) if one.line.rank is None else None
        if one.name == "xid":
            rank = processes.of_bus(one.line, str(one.fields["pci"]))
        if rank is None and one.name in _ENDS_OF_PROCESSES:
            rank = processes.of_pid(one.line)
            words = one.line.text.split() if rank is None else ()
            rank = next((pods[word] for word in words if word in pods), rank)
        if rank is not None:
            found[one.line.source, one.line.number] = rank
    return found


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

"""From a heap of evidence to one verdict: pieces sorted by kind, facts of each kind, a verdict of each, one of all.

Logs are read while they are found, so that a compressed archive is gone through once; boxes, dumps and reports wait for
the end, because their tables need all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from holdfast.actions import witnesses
from holdfast.actions.audit import audit_recorded
from holdfast.actions.heap import Heap, ReadPiece, Watch
from holdfast.actions.incident import timeline
from holdfast.actions.witnesses import Tables
from holdfast.errors import MissingFile
from holdfast.facts import box_files, stack_tree
from holdfast.facts.dumps import DumpTable
from holdfast.facts.evidence import Ignored, Kind, Piece
from holdfast.facts.evidence.gather import STANDARD_INPUT, gather
from holdfast.facts.evidence.streams import Limits
from holdfast.facts.logs import LogFacts, reader
from holdfast.facts.memory_snapshots import Snapshot
from holdfast.facts.node import Summary
from holdfast.facts.ranks import RankState
from holdfast.facts.stack_files import StackTable
from holdfast.findings import Fact, Level, Verdict
from holdfast.report.html import incident_page
from holdfast.report.text import plural
from holdfast.report.timeline import Timeline
from holdfast.rules import exits, memory_snapshot, untold
from holdfast.rules.logs.judge import is_mute
from holdfast.rules.logs.judge import judge as judge_logs
from holdfast.rules.verdict import QUESTION, merge

COULD_NOT_JUDGE = 3
#: Files listed on the page, of those read and of those ignored.
MOST_LISTED = 100
MOST_UNSEEN = 64
#: Findings about variables of the job that stand among the suspects.
MOST_VARIABLES = 4


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, and what it rests on.

    ``summary`` and ``dumps`` are the tables of ranks, ``stacks`` what files of stacks tell, where there are any;
    ``collectives`` is the history of those that timed out or were slow, ``snapshots`` are those of GPU memory.
    """

    verdict: Verdict
    read: tuple[ReadPiece, ...]
    ignored: tuple[Ignored, ...]
    elapsed_s: float
    logs: LogFacts | None = None
    summary: Summary | None = None
    dumps: DumpTable | None = None
    stacks: StackTable | None = None
    collectives: tuple[Fact, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 a root of level error, 2 nothing could be read, 3 it could not be judged."""
        if not self.read:
            return 2
        root = self.verdict.root
        if root is not None:
            return {Level.ERROR: 1, Level.UNKNOWN: COULD_NOT_JUDGE}.get(root.level, 0)
        sampled = self.stacks is not None and self.stacks.samples is not None
        blind = not any((self.logs, self.summary, self.dumps, sampled))
        unsaid = self.summary is not None and untold.ranks(self.summary.ranks)
        return COULD_NOT_JUDGE if self.verdict.suspects or blind or unsaid or self._is_cut or self._is_mute else 0

    @property
    def _is_cut(self) -> bool:
        """True where something was lost in which the cause may have stood."""
        return any(item.trouble for item in self.read) or any(item.lost for item in self.ignored)

    @property
    def _is_mute(self) -> bool:
        """True where there are logs alone, and they tell neither of a failure nor of steps nor of an end."""
        return self.logs is not None and not (self.summary or self.dumps or self.stacks) and is_mute(self.logs)

    @property
    def is_undecided(self) -> bool:
        """True where nothing was found, and what was not seen may be why."""
        return self.verdict.root is None and self.exit_status == COULD_NOT_JUDGE


def diagnose(
    paths: Sequence[str],
    *,
    limits: Limits | None = None,
    watch: Watch | None = None,
    read_logs: Callable[[Iterator[Piece]], LogFacts] = reader.read,
) -> Diagnosis:
    """Read everything under ``paths`` and judge it; ``read_logs`` reads the logs among it.

    Raises:
        MissingFile: none of the paths is there.
    """
    begun = time.monotonic()
    heap = Heap(watch)
    logs = read_logs(heap.sort(gather(paths, limits)))
    told = logs if heap.has(Kind.LOG) else None
    tables = _tables(heap, told)
    snapshots = tuple(heap.snapshots())
    verdicts = [*([memory_snapshot.judge(snapshots)] if snapshots else []), *witnesses.judge(tables)]
    said = judge_logs(logs) if told is not None else None
    collectives = heap.collectives()
    heap.settle_sizes()
    read = tuple(item for item in heap.read if item.name not in heap.refused)
    if heap.ignored and not read and all(_is_missing(item, paths) for item in heap.ignored):
        raise MissingFile(", ".join(paths[:4]) or "nothing")
    verdict = merge(verdicts, said) if verdicts or said else heap.earlier or Verdict(question=QUESTION)
    verdict = replace(verdict, unseen=(*verdict.unseen, *_unseen(read, heap.ignored)))
    if verdict.root is not None and tables.boxes is not None:  # asked again, now that the job is over
        verdict = replace(verdict, suspects=(*verdict.suspects, *audit_recorded(tables.boxes.facts)[:MOST_VARIABLES]))
    elapsed_s = time.monotonic() - begun
    return Diagnosis(
        verdict, read, tuple(heap.ignored), elapsed_s, told, tables.boxes, tables.dumps, tables.stacks, collectives,
        snapshots,
    )  # fmt: skip


def _tables(heap: Heap, logs: LogFacts | None) -> Tables:
    """The tables of ranks, each with what the other witnesses know of its ranks."""
    made = heap.boxes()
    boxes = heap.table(made.summary)
    dumped = heap.dumps(boxes.groups if boxes is not None else {})
    if boxes is made.summary:
        boxes = box_files.settle(made, partial(heap.dump_of, dumped))
    sizes = [each.world_size for each in (boxes, dumped, logs) if each is not None and each.world_size]
    stacks = heap.stacks(_processes(boxes.ranks if boxes is not None else ()), sizes[0] if sizes else 0)
    facts: dict[int, Fact] = {}
    watched = boxes is not None and any(witnesses.is_watched(state) for state in boxes.ranks)
    if boxes is not None:
        joined = exits.join(witnesses.with_stacks(boxes.ranks, stacks.samples), logs, boxes.world_size)
        boxes, facts = replace(boxes, ranks=joined.ranks), facts | joined.facts
    if dumped is not None:
        joined = exits.join(dumped.ranks, logs, dumped.world_size)
        dumped, facts = replace(dumped, ranks=joined.ranks), facts | joined.facts
    return Tables(boxes, dumped, stacks if heap.has(Kind.STACKS) else None, facts, watched)


def _processes(ranks: Sequence[RankState]) -> dict[int, int]:
    """Which rank a process is, where no two hosts have one of that number."""
    count = Counter(state.pid for state in ranks)
    return {state.pid: state.rank for state in ranks if count[state.pid] == 1}


def _is_missing(item: Ignored, paths: Sequence[str]) -> bool:
    return item.name in paths and item.name != STANDARD_INPUT and item.why == "no such file or directory"


def _unseen(read: Sequence[ReadPiece], ignored: Sequence[Ignored]) -> list[str]:
    lost = [f"{item.name}: {item.why}" for item in ignored if item.lost]
    return [*lost, *(f"{item.name}: {item.trouble}" for item in read if item.trouble)][:MOST_UNSEEN]


def page(found: Diagnosis) -> str:
    """The diagnosis as one page; with the picture of the ranks where boxes tell of them."""
    table = found.summary
    drawn = timeline(table) if table is not None else Timeline((), time.time(), time.time())
    facts = (*(table.facts if table is not None else ()), *found.collectives)
    run = {"read": plural(len(found.read), "file"), "ignored": plural(len(found.ignored), "file")}
    run |= {item.name: f"{item.kind}, {item.bytes:,} bytes" for item in found.read[:MOST_LISTED]}
    run |= {item.name: f"ignored: {item.why}" for item in found.ignored[:MOST_LISTED]}
    threads = found.stacks.samples.threads if found.stacks is not None and found.stacks.samples is not None else {}
    tree = stack_tree.merge(threads)
    return incident_page(
        found.verdict, drawn, title="diagnosis", facts=facts, run=run, tree=tree, undecided=found.is_undecided
    )

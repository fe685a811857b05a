"""What several witnesses tell of the same ranks, put into one table before it is judged.

Boxes and dumps know the calls, stacks where a rank is instead, launchers how its process ended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.actions.judgement import Judgement, held_against_source
from holdfast.facts import source
from holdfast.facts.dumps import DumpTable
from holdfast.facts.job_samples import Samples
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Life, Place, RankState
from holdfast.facts.source import Surroundings
from holdfast.facts.stack_files import StackTable
from holdfast.findings import Fact, Verdict
from holdfast.rules import dumps as dump_rules
from holdfast.rules import hang, stacks, stall, untold
from holdfast.rules.meetings import settle
from holdfast.rules.verdict import QUESTION

#: Lines of the user's whose source is looked up.
MOST_PLACES = 256
#: A job whose processes live and that advanced so short ago is not called stuck.
ALIVE_S = 5.0
#: What only a look at the living processes could rule out.
_NEEDS_PROCESSES = frozenset({"rank-killed", "rank-stopped", "host-oom-killed"})
#: What dumps say of a rank that did not come.
_MISSING = frozenset({"rank-missing-collective", "peer-lost"})
#: What only a look at the process tells.
_LOOKED_AT = ("host", "pid", "stacks", "cpu_share", "io_bytes", "blocked_on", "children")


class Tables(msgspec.Struct, frozen=True):
    """The tables of ranks that boxes, dumps and files of stacks make.

    ``exits`` are the lines of logs that tell how ranks ended. ``watched``: somebody saw the processes of the boxes.
    """

    boxes: Summary | None = None
    dumps: DumpTable | None = None
    stacks: StackTable | None = None
    exits: Mapping[int, Fact] = {}
    watched: bool = False


def judge(tables: Tables) -> list[Verdict]:
    """A verdict over each table, that of the best witness first."""
    found: list[Verdict] = []
    samples = tables.stacks.samples if tables.stacks is not None else None
    if tables.boxes is not None:
        found.append(by_boxes(tables.boxes, watched=tables.watched))
    if tables.dumps is not None:
        found.append(_of_dumps(tables.dumps) if samples is None else by_dumps(samples, tables.dumps))
    known = {row.rank for table in (tables.boxes, tables.dumps) if table is not None for row in table.ranks}
    if tables.stacks is not None:
        verdict = Verdict(question=QUESTION)
        if samples is not None and not known.issuperset(row.rank for row in samples.ranks):
            verdict = by_stacks(samples, tables.stacks.running)
        found.append(replace(verdict, unseen=(*tables.stacks.unseen, *verdict.unseen)))
    return [_with_exit(verdict, tables.exits) for verdict in found]


def _with_exit(verdict: Verdict, exits: Mapping[int, Fact]) -> Verdict:
    """The verdict, whose root cites the line that tells how its rank ended."""
    root = verdict.root
    fact = exits.get(root.subject.rank) if root is not None and root.subject.rank is not None else None
    if root is None or fact is None:
        return verdict
    return replace(verdict, root=replace(root, evidence=(*root.evidence, fact)))


def is_watched(state: RankState) -> bool:
    """True where somebody saw the process itself."""
    return state.life not in (Life.UNKNOWN, Life.DEAD) or state.exit_code is not None


def by_boxes(table: Summary, *, watched: bool) -> Verdict:
    """The verdict over a table of ranks; a job that lives and advances, and in which none failed, is no case."""
    living = [state for state in table.ranks if state.life == Life.RUNNING]
    advanced_s = time.time() - table.silent_since
    failed = any(state.raised is not None for state in table.ranks)
    if living and not failed and advanced_s < ALIVE_S:
        return Verdict(question=QUESTION, unseen=(f"the job runs; it advanced {max(advanced_s, 0):.1f} s ago",))
    verdict = held_against_source(Judgement(stall.Limits()).judge(table), table.ranks, table.groups)
    if not watched:
        known = tuple(out for out in verdict.ruled_out if out.cause not in _NEEDS_PROCESSES)
        text = "the processes themselves: there are only their boxes"
        verdict = replace(verdict, ruled_out=known, unseen=(*verdict.unseen, text))
    return untold.weigh(verdict, table.ranks, watched=table.time > table.silent_since)


def by_stacks(samples: Samples, running: Collection[int] = ()) -> Verdict:
    """What stacks alone tell; ``running`` are ranks whose main thread ran whenever it was looked at."""
    return stacks.judge(
        samples.ranks,
        samples.threads,
        world_size=samples.world_size,
        source=around(samples.ranks),
        gone=samples.gone,
        running=running,
    )


def by_dumps(samples: Samples, dumps: DumpTable) -> Verdict:
    """What the flight recorder knows of the collectives, together with what was seen of the processes."""
    seen = {state.rank: state for state in samples.ranks}
    rows = (_looked_at(row, seen[row.rank]) if row.rank in seen else row for row in dumps.ranks)
    return _of_dumps(replace(dumps, ranks=tuple(rows)))


def _of_dumps(table: DumpTable) -> Verdict:
    """The verdict over dumps; of a rank that did not come, its stack says where it is, and its exit why it is not."""
    told = dump_rules.judge(table)
    if told.root is None or told.root.cause not in _MISSING:
        return told
    rank = told.root.subject.rank
    if not any(row.stacks or is_watched(row) for row in table.ranks if row.rank == rank):
        return told
    seen = hang.judge(settle(table).ranks, table.groups, world_size=table.world_size, source=around(table.ranks))
    same = seen.root is not None and seen.root.subject.rank == rank
    return replace(seen, unseen=told.unseen) if same else told


def _looked_at(row: RankState, seen: RankState) -> RankState:
    """The row with what was seen of the process; that it ended is not seen in its stacks."""
    life = seen.life if row.life == Life.UNKNOWN else row.life
    return replace(row, **{name: getattr(seen, name) for name in _LOOKED_AT}, life=life)


def around(ranks: Sequence[RankState]) -> dict[Place, Surroundings]:
    """The source around the user's lines on the stacks."""
    places = {frame for state in ranks for stack in state.stacks[-1:] for frame in stack.frames[:32]}
    wanted = [place for place in sorted(places, key=str) if place.file.startswith("/")][:MOST_PLACES]
    seen = {place: source.surroundings(place) for place in wanted}
    return {place: found for place, found in seen.items() if isinstance(found, Surroundings)}


def with_stacks(rows: Iterable[RankState], samples: Samples | None) -> tuple[RankState, ...]:
    """The rows of a table, with the stacks of ranks that it has none of."""
    seen = {state.rank: state.stacks for state in samples.ranks} if samples is not None else {}
    return tuple(replace(row, stacks=row.stacks or seen.get(row.rank, ())) for row in rows)

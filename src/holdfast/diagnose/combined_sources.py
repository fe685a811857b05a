"""Combine what several evidence sources know about the same ranks into one table, and judge it.

Trace files and dumps have the collective calls, stacks the line at which a rank is, launchers how
its process ended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.core.findings import Fact, Verdict
from holdfast.core.rank_table import ProcessState, RankState, SourceLine
from holdfast.diagnose import unobserved
from holdfast.diagnose.combined_verdict import QUESTION
from holdfast.diagnose.dumps import rules as dump_rules
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.dumps.matching import match_calls
from holdfast.diagnose.stacks import rules as stacks_rules
from holdfast.diagnose.stacks.job_samples import JobSamples
from holdfast.diagnose.stacks.stack_files import StackTable
from holdfast.watcher import source_context
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import hang, stall
from holdfast.watcher.source_context import SourceContext
from holdfast.watcher.stall_detector import StallDetector, refine_with_source

#: Source lines on stacks whose source is read.
MAX_SOURCE_LINES = 256
#: A running job that progressed this recently is not hung.
RECENT_PROGRESS_S = 5.0
#: Causes that only an observation of the running processes can rule out.
_NEEDS_PROCESSES = frozenset({RANK_KILLED.name, RANK_STOPPED.name, HOST_OOM_KILLED.name})
#: Causes that dumps report for a rank that did not enter a collective.
_MISSING_RANK_CAUSES = frozenset({RANK_MISSING_COLLECTIVE.name, PEER_LOST.name})
#: Fields of a rank's state that only an observation of its process has.
_PROCESS_FIELDS = ("host", "pid", "stacks", "cpu_share", "io_bytes", "blocked_on", "children")


class RankTables(msgspec.Struct, frozen=True):
    """The rank tables made from trace files, dumps and stack files.

    ``exits`` are log lines about the end of ranks; ``processes_observed``: the processes of the
    trace files were observed.
    """

    traces: JobSummary | None = None
    dumps: DumpTable | None = None
    stacks: StackTable | None = None
    exits: Mapping[int, Fact] = {}
    processes_observed: bool = False


def judge_tables(tables: RankTables) -> list[Verdict]:
    """Return a verdict over each table, that of the most reliable source first."""
    verdicts: list[Verdict] = []
    samples = tables.stacks.samples if tables.stacks is not None else None
    known: set[int] = set()
    if tables.traces is not None:
        verdicts.append(judge_traces(tables.traces, processes_observed=tables.processes_observed))
        known |= {row.rank for row in tables.traces.ranks}
    if tables.dumps is not None:
        verdicts.append(
            judge_dumps(tables.dumps)
            if samples is None
            else judge_dumps_with_samples(samples, tables.dumps)
        )
        known |= {row.rank for row in tables.dumps.ranks}
    if tables.stacks is not None:
        verdict = Verdict(question=QUESTION)
        if samples is not None and not known.issuperset(row.rank for row in samples.ranks):
            verdict = judge_stacks(samples, tables.stacks.running)
        verdicts.append(replace(verdict, unseen=(*tables.stacks.unseen, *verdict.unseen)))
    return [_cite_exit(verdict, tables.exits) for verdict in verdicts]


def _cite_exit(verdict: Verdict, exits: Mapping[int, Fact]) -> Verdict:
    """Return the verdict with the log line about the end of the root cause's rank."""
    root = verdict.root
    rank = root.subject.rank if root is not None else None
    if root is None or rank is None or rank not in exits:
        return verdict
    return replace(verdict, root=replace(root, evidence=(*root.evidence, exits[rank])))


def is_process_observed(state: RankState) -> bool:
    """Return whether the state of the process itself is known."""
    return (
        state.life not in (ProcessState.UNKNOWN, ProcessState.DEAD) or state.exit_code is not None
    )


def judge_traces(table: JobSummary, *, processes_observed: bool) -> Verdict:
    """Return the verdict over trace files; a running job that progresses has no root cause."""
    is_running = any(state.life == ProcessState.RUNNING for state in table.ranks)
    has_failed = any(state.raised is not None for state in table.ranks)
    since_progress_s = time.time() - table.silent_since
    if is_running and not has_failed and since_progress_s < RECENT_PROGRESS_S:
        text = f"the job is running; it last progressed {max(since_progress_s, 0):.1f} s ago"
        return Verdict(question=QUESTION, unseen=(text,))
    verdict = refine_with_source(
        StallDetector(stall.StallLimits()).judge(table), table.ranks, table.groups
    )
    if not processes_observed:
        known = tuple(out for out in verdict.ruled_out if out.cause not in _NEEDS_PROCESSES)
        text = "the processes: only their trace files are available"
        verdict = replace(verdict, ruled_out=known, unseen=(*verdict.unseen, text))
    stall_observed = table.time > table.silent_since
    return unobserved.weigh_unobserved(verdict, table.ranks, stall_observed=stall_observed)


def judge_stacks(samples: JobSamples, running: Collection[int] = ()) -> Verdict:
    """Return the verdict over stacks; main threads of ranks in ``running`` were never idle."""
    return stacks_rules.judge(
        samples.ranks,
        samples.threads,
        world_size=samples.world_size,
        source=read_source(samples.ranks),
        gone=samples.gone,
        running=running,
    )


def judge_dumps_with_samples(samples: JobSamples, dumps: DumpTable) -> Verdict:
    """Return the verdict over dumps with what was observed of the processes."""
    observed = {state.rank: state for state in samples.ranks}
    rows = (
        _add_observation(row, observed[row.rank]) if row.rank in observed else row
        for row in dumps.ranks
    )
    return judge_dumps(replace(dumps, ranks=tuple(rows)))


def judge_dumps(table: DumpTable) -> Verdict:
    """Return the verdict over dumps, with the stack or exit of the missing rank if known."""
    verdict = dump_rules.judge(table)
    if verdict.root is None or verdict.root.cause not in _MISSING_RANK_CAUSES:
        return verdict
    rank = verdict.root.subject.rank
    if not any(row.stacks or is_process_observed(row) for row in table.ranks if row.rank == rank):
        return verdict
    detailed = hang.judge_hang(
        match_calls(table).ranks,
        table.groups,
        world_size=table.world_size,
        source=read_source(table.ranks),
    )
    if detailed.root is None or detailed.root.subject.rank != rank:
        return verdict
    return replace(detailed, unseen=verdict.unseen)


def _add_observation(row: RankState, observed: RankState) -> RankState:
    """Return the row with the fields of the process; stacks do not show that a process ended."""
    life = observed.life if row.life == ProcessState.UNKNOWN else row.life
    fields = {name: getattr(observed, name) for name in _PROCESS_FIELDS}
    return replace(row, **fields, life=life)


def read_source(ranks: Sequence[RankState]) -> dict[SourceLine, SourceContext]:
    """Return the source around the user's lines on the stacks."""
    places = {
        frame for state in ranks for stack in state.stacks[-1:] for frame in stack.frames[:32]
    }
    absolute = [place for place in sorted(places, key=str) if place.file.startswith("/")]
    contexts = {
        place: source_context.read_source_context(place) for place in absolute[:MAX_SOURCE_LINES]
    }
    return {place: found for place, found in contexts.items() if isinstance(found, SourceContext)}


def add_stacks(rows: Iterable[RankState], samples: JobSamples | None) -> tuple[RankState, ...]:
    """Return the rows, with the sampled stacks for ranks without any."""
    stacks = {state.rank: state.stacks for state in samples.ranks} if samples is not None else {}
    return tuple(replace(row, stacks=row.stacks or stacks.get(row.rank, ())) for row in rows)

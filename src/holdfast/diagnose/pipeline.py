"""From evidence files to one verdict: facts by kind, a verdict for each, and their combination.

Logs are read while files are found, so that a compressed archive is read once; other kinds are read
at the end, because their tables need all files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from holdfast.core.errors import MissingFile
from holdfast.core.findings import Fact, Level, Verdict
from holdfast.core.gc_pause import gc_paused
from holdfast.core.rank_table import RankState
from holdfast.diagnose import combined_sources, memory_snapshot_rules, process_exits, trace_files
from holdfast.diagnose.combined_sources import RankTables
from holdfast.diagnose.combined_verdict import QUESTION, merge
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.diagnose.evidence.gather import STANDARD_INPUT, gather
from holdfast.diagnose.evidence.streams import IntakeLimits
from holdfast.diagnose.evidence_set import EvidenceSet, ProgressCallback, ReadEvidence
from holdfast.diagnose.log_rules.judge import judge as judge_logs
from holdfast.diagnose.log_rules.judge import lacks_progress
from holdfast.diagnose.logs import LogFacts
from holdfast.diagnose.logs.reader import read_logs
from holdfast.diagnose.memory_snapshots import MemorySnapshot
from holdfast.diagnose.stacks.stack_files import StackTable
from holdfast.diagnose.unobserved import unobserved_ranks
from holdfast.host.variable_audit import audit_recorded
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules.placeholders import fill_verdict

INCONCLUSIVE = 3
MAX_UNSEEN = 64
#: Findings about environment variables that are added to the suspects.
MAX_VARIABLES = 4

LogsReader = Callable[[Iterator[EvidenceFile]], LogFacts]


@dataclass(frozen=True)
class DiagnosisResult:
    """The verdict and its evidence.

    ``summary`` and ``dumps`` are rank tables, ``stacks`` that of stack files; ``collectives`` are
    facts about collectives that timed out or were slow, ``snapshots`` those of GPU memory.
    """

    verdict: Verdict
    read: tuple[ReadEvidence, ...]
    ignored: tuple[SkippedEvidence, ...]
    elapsed_s: float
    logs: LogFacts | None = None
    summary: JobSummary | None = None
    dumps: DumpTable | None = None
    stacks: StackTable | None = None
    collectives: tuple[Fact, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 root cause of level error, 2 no readable input, 3 inconclusive."""
        if not self.read:
            return 2
        root = self.verdict.root
        if root is not None:
            return {Level.ERROR: 1, Level.UNKNOWN: INCONCLUSIVE}.get(root.level, 0)
        return INCONCLUSIVE if self.verdict.suspects or self._lacks_evidence else 0

    @property
    def _lacks_evidence(self) -> bool:
        """Whether missing evidence may hide a root cause."""
        is_sampled = self.stacks is not None and self.stacks.samples is not None
        if not any((self.logs, self.summary, self.dumps, is_sampled)):
            return True
        if self.summary is not None and unobserved_ranks(self.summary.ranks):
            return True
        if any(item.read_error for item in self.read) or any(item.lost for item in self.ignored):
            return True
        logs_only = self.logs is not None and not (self.summary or self.dumps or self.stacks)
        return logs_only and self.logs is not None and lacks_progress(self.logs)

    @property
    def is_inconclusive(self) -> bool:
        """Whether no root cause was found, and missing evidence may be the reason."""
        return self.verdict.root is None and self.exit_status == INCONCLUSIVE


def diagnose(
    paths: Sequence[str],
    *,
    limits: IntakeLimits | None = None,
    on_progress: ProgressCallback | None = None,
    read: LogsReader = read_logs,
) -> DiagnosisResult:
    """Read and judge all evidence under ``paths``; ``read`` reads the logs.

    Raises:
        MissingFile: none of the paths exists.
    """
    begin = time.monotonic()
    evidence = EvidenceSet(on_progress)
    facts = read(evidence.take_logs(gather(paths, limits)))
    logs = facts if evidence.has(EvidenceKind.LOG) else None
    tables = _rank_tables(evidence, logs)
    snapshots = tuple(evidence.read_snapshots())
    collectives = evidence.read_history()
    evidence.finish_reading()
    if (
        evidence.ignored
        and not evidence.read
        and all(_is_missing(item, paths) for item in evidence.ignored)
    ):
        raise MissingFile(", ".join(paths[:4]) or "nothing")
    verdicts = [
        *([memory_snapshot_rules.judge(snapshots)] if snapshots else []),
        *combined_sources.judge_tables(tables),
    ]
    verdict = evidence.earlier_verdict or Verdict(question=QUESTION)
    if verdicts or logs is not None:
        with gc_paused():  # 100,000 logs have as many facts
            verdict = merge(verdicts, judge_logs(logs) if logs is not None else None)
    verdict = replace(verdict, unseen=(*verdict.unseen, *_unread(evidence)))
    if verdict.root is not None and tables.traces is not None:
        variables = audit_recorded(tables.traces.facts)[:MAX_VARIABLES]
        verdict = replace(verdict, suspects=(*verdict.suspects, *variables))
    if len(evidence.commands) == 1:
        command = next(iter(evidence.commands))
        verdict = fill_verdict(verdict, command.launch_options, command.script)
    return DiagnosisResult(
        verdict,
        tuple(evidence.read),
        tuple(evidence.ignored),
        time.monotonic() - begin,
        logs,
        tables.traces,
        tables.dumps,
        tables.stacks,
        collectives,
        snapshots,
    )


def _rank_tables(evidence: EvidenceSet, logs: LogFacts | None) -> RankTables:
    """Return the rank tables, each completed with what the other sources know of its ranks."""
    trace_table = evidence.read_traces()
    traces = evidence.newest_summary(trace_table.summary)
    dumps = evidence.read_dumps(traces.groups if traces is not None else {})
    if traces is trace_table.summary:
        traces = trace_files.resolve_completions(trace_table, partial(evidence.find_dump, dumps))
    sizes = (each.world_size for each in (traces, dumps, logs) if each is not None)
    stacks = evidence.read_stacks(
        _rank_by_pid(traces.ranks if traces is not None else ()), next(filter(None, sizes), 0)
    )
    exits: dict[int, Fact] = {}
    processes_observed = False
    if traces is not None:
        processes_observed = any(map(combined_sources.is_process_observed, traces.ranks))
        rows = combined_sources.add_stacks(traces.ranks, stacks.samples)
        completed = process_exits.add_exits(rows, logs, traces.world_size)
        traces = replace(traces, ranks=completed.ranks)
        exits |= completed.facts
    if dumps is not None:
        completed = process_exits.add_exits(dumps.ranks, logs, dumps.world_size)
        dumps = replace(dumps, ranks=completed.ranks)
        exits |= completed.facts
    has_stacks = evidence.has(EvidenceKind.STACKS)
    return RankTables(traces, dumps, stacks if has_stacks else None, exits, processes_observed)


def _rank_by_pid(ranks: Sequence[RankState]) -> dict[int, int]:
    """Return the ranks by pid, without pids that several hosts have."""
    count = Counter(state.pid for state in ranks)
    return {state.pid: state.rank for state in ranks if count[state.pid] == 1}


def _is_missing(item: SkippedEvidence, paths: Sequence[str]) -> bool:
    return (
        item.name in paths
        and item.name != STANDARD_INPUT
        and item.why == "no such file or directory"
    )


def _unread(evidence: EvidenceSet) -> list[str]:
    """Return what could not be read, and why."""
    lost = [f"{item.name}: {item.why}" for item in evidence.ignored if item.lost]
    partial_files = [f"{item.name}: {item.read_error}" for item in evidence.read if item.read_error]
    return [*lost, *partial_files][:MAX_UNSEEN]

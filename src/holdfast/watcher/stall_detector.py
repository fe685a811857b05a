"""Detects a stall: suspects a silent job, samples it twice a second apart, and judges it.

Ranks that are slow, or that may recover, get more time before a verdict is acted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from holdfast.causes import by_name
from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.performance.computing_long import COMPUTING_LONG
from holdfast.causes.process.python_lock_held import PYTHON_LOCK_HELD
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.stale_build_lock import STALE_BUILD_LOCK
from holdfast.core.findings import Finding, Verdict
from holdfast.core.rank_table import ProcessGroupInfo, ProcessState, RankState, SourceLine
from holdfast.watcher import source_context, source_lint
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules import hang, roots, source_match, stall
from holdfast.watcher.rules.call_sites import MAX_CALLER_LEVELS
from holdfast.watcher.rules.consequences import list_failures
from holdfast.watcher.rules.stack_divergence import compared_frames
from holdfast.watcher.rules.stall import StallLimits
from holdfast.watcher.source_context import SourceContext
from holdfast.watcher.source_lint import SourceLint

BETWEEN_SAMPLES_S = 1.0
#: Time after the first close observation to wait for those of other nodes.
OTHER_NODES_LIMIT_S = 4.0
OTHER_NODES_RETRY_S = 0.4
#: Interval between close observations of a rank that may only need more time.
RETRY_S = 2.0
#: Time that a verdict about exited ranks waits for the linter.
SOURCE_LIMIT_S = 1.5
#: Silence after which one line reports why there is no verdict yet.
NOTE_AFTER_S = 30.0
#: An extension that is longer has no end.
LONG_S = 1e6
#: Calls per rank whose source is read, and source lines in all.
MAX_CALLS = 64
MAX_LINES = 256

#: Causes for which a rank gets no extra time: its stack shows a build, the end of the script or a
#: connection to the store, and none of them advances.
_NO_EXTENSION = frozenset({STALE_BUILD_LOCK.name, PYTHON_LOCK_HELD.name, MASTER_UNREACHABLE.name})

#: Takes a close observation of this node.
ObserveClosely = Callable[[], JobSummary]
#: Combines the summary of this node with those of the others.
CombineNodes = Callable[[JobSummary], JobSummary]


@dataclass(frozen=True)
class DetectorOutcome:
    """Result of one update: nothing, a note, or a verdict, with the table that it is based on.

    ``verdict`` is to be acted on. ``suspicion`` reports the root cause of ``suspected``, which may
    still recover; ``withdrawal`` reports that the job advanced after a suspicion.
    """

    table: JobSummary
    verdict: Verdict | None = None
    note: str | None = None
    suspicion: str | None = None
    suspected: Verdict | None = None
    withdrawal: str | None = None
    silent_s: float = 0.0

    @property
    def root(self) -> Finding | None:
        """The root cause of the verdict, if any."""
        return self.verdict.root if self.verdict is not None else None


class StallDetector:
    """Follows one generation of a job. ``limits`` may change while the job runs.

    ``may_restart``: the job may be restarted, so that ending the generation does not end the job.
    """

    def __init__(self, limits: StallLimits, *, may_restart: bool = True) -> None:
        self.limits, self._may_restart = limits, may_restart
        self._silent_since = 0.0
        self._suspected_at = 0.0
        self._retry_at = 0.0
        self._done = False
        self._note_sent = False
        self._lint = SourceLint()
        #: An outcome that waits for the linter.
        self._waiting_for_source: DetectorOutcome | None = None
        #: The reported suspicion, until the suspected rank advances or the job is acted on.
        self._suspicion: DetectorOutcome | None = None

    @property
    def is_suspecting(self) -> bool:
        """Return whether the second close observation is due soon."""
        return self._suspected_at > 0

    def update(
        self, table: JobSummary, observe_closely: ObserveClosely, combine: CombineNodes
    ) -> DetectorOutcome:
        """Process ``table``; after too long a silence, observe closely twice and judge.

        Called at every tick. It never blocks; other nodes get time to send their own close
        observations.
        """
        withdrawal = self._withdrawal(table)
        if table.silent_since > self._silent_since:  # a rank advanced
            self._silent_since = table.silent_since
            self._suspected_at = self._retry_at = 0.0
            self._done = self._note_sent = False
            self._waiting_for_source = None
        silent_s = time.time() - table.silent_since
        outcome = (
            self._add_source(self._waiting_for_source, silent_s)
            if self._waiting_for_source is not None
            else self._observe(table, silent_s, observe_closely, combine)
        )
        return replace(outcome, withdrawal=withdrawal) if withdrawal else outcome

    def _withdrawal(self, table: JobSummary) -> str | None:
        """Withdraw the suspicion if the suspected rank advanced; any rank if none was named.

        Ranks whose wait timed out are no progress.
        """
        suspicion = self._suspicion
        root = suspicion.root if suspicion is not None else None
        if suspicion is None or root is None or any(roots.died(state) for state in table.ranks):
            return None
        before = _progress(suspicion.table, root.subject.rank)
        now = _progress(table, root.subject.rank)
        if now <= before:
            return None
        self._suspicion = None
        return f"suspicion withdrawn: the job advanced after {now - before:.1f} s ({root.message})"

    def _observe(
        self,
        table: JobSummary,
        silent_s: float,
        observe_closely: ObserveClosely,
        combine: CombineNodes,
    ) -> DetectorOutcome:
        now = table.silent_since + silent_s
        if (
            self._done
            or silent_s < stall.threshold_s(table.ranks, self.limits)
            or now < self._retry_at
        ):
            return DetectorOutcome(table)
        if not self.is_suspecting:
            self._suspected_at = now
            self._lint.start(observe_closely().ranks)
            return DetectorOutcome(table)
        if now < self._suspected_at + BETWEEN_SAMPLES_S:
            return DetectorOutcome(table)
        detailed = combine(observe_closely())
        may_wait = (
            detailed.silent_since == table.silent_since
            and now < self._suspected_at + OTHER_NODES_LIMIT_S
        )
        if any(stall.is_node_late(state) for state in detailed.ranks) or (
            may_wait and any(_needs_stacks(state) for state in detailed.ranks)
        ):
            self._retry_at = now + OTHER_NODES_RETRY_S
            return DetectorOutcome(detailed)
        self._suspected_at, self._retry_at = 0.0, now + RETRY_S
        if detailed.silent_since > table.silent_since:
            return DetectorOutcome(detailed)
        outcome = self.judge_silence(detailed, time.time() - table.silent_since)
        return outcome if outcome.verdict is None else self._add_source(outcome, outcome.silent_s)

    def _add_source(self, outcome: DetectorOutcome, silent_s: float) -> DetectorOutcome:
        """Refine the verdict with the source; if the linter still runs, hold the outcome back."""
        verdict = outcome.verdict
        if (
            verdict is not None
            and source_match.is_refinable(verdict, outcome.table.ranks)
            and self._lint.is_running
        ):
            self._waiting_for_source = outcome
            return DetectorOutcome(outcome.table)
        self._waiting_for_source = None
        if verdict is None:
            return outcome
        ranks, groups = outcome.table.ranks, outcome.table.groups
        refined = refine_with_source(verdict, ranks, groups, self._lint, 0.0)
        return self._act_or_suspect(replace(outcome, verdict=refined, silent_s=silent_s))

    def _act_or_suspect(self, outcome: DetectorOutcome) -> DetectorOutcome:
        """Return the verdict if it is time to act on it, else report the suspicion once."""
        root = outcome.root
        if root is None:
            return outcome
        act_after_s = stall.act_after_s(
            root.cause, outcome.table.ranks, self.limits, may_restart=self._may_restart
        )
        if outcome.silent_s >= act_after_s:
            self._done, self._suspicion = True, None
            return outcome
        if (
            self._suspicion is not None
            and self._suspicion.table.silent_since == outcome.table.silent_since
        ):
            return DetectorOutcome(outcome.table)
        why = (
            f"it may recover, so the job is left as it is until {act_after_s:g} s without progress "
            "(--act-after)"
        )
        return self._suspect(outcome, root, why)

    def _suspect(self, outcome: DetectorOutcome, root: Finding, why: str) -> DetectorOutcome:
        """Report a suspicion; ``why`` states why the job is not acted on yet."""
        self._suspicion = outcome
        sentence = (
            f"suspected hang: no progress for {outcome.silent_s:.1f} s: {root.message} "
            f"({root.code} {root.cause}); {why}"
        )
        return DetectorOutcome(outcome.table, suspicion=sentence, suspected=outcome.verdict)

    def final_verdict(self, table: JobSummary) -> Verdict:
        """Judge a job that cannot continue, with the source if the linter finishes in time.

        If ranks died because their wait for a suspected rank timed out, that rank remains the root.
        """
        suspected = self._suspicion.verdict if self._suspicion is not None else None
        root = suspected.root if suspected is not None else None
        if suspected is not None and root is not None and _only_timeouts(table, root):
            return structs.replace(
                suspected,
                question=hang.QUESTION_FAILED,
                consequences=(*suspected.consequences, *list_failures(table.ranks, root)),
                ruled_out=tuple(
                    entry for entry in suspected.ruled_out if entry.cause != RANK_KILLED.name
                ),
            )
        return refine_with_source(
            self.judge(table), table.ranks, table.groups, self._lint, SOURCE_LIMIT_S
        )

    def judge_silence(self, table: JobSummary, silent_s: float) -> DetectorOutcome:
        """Judge a job that has been silent for ``silent_s``, or report why it gets more time.

        A rank that computes for long, or that is idle before its first step, while the others wait
        for it is suspected meanwhile, and so is a job whose ranks all wait outside of collectives
        after they made steps or ended the script.
        """
        verdict = self.judge(table)
        if verdict.root is None:
            return DetectorOutcome(table)
        extension = self._extension(verdict.root, table)
        if extension is None or silent_s >= extension.until_s:
            return DetectorOutcome(table, verdict, silent_s=silent_s)
        if silent_s <= NOTE_AFTER_S or self._note_sent:
            return DetectorOutcome(table)
        self._note_sent = True
        until = f" until {extension.until_s:.0f} s" if extension.until_s < LONG_S else ""
        if (
            verdict.root.cause == COMPUTING_LONG.name
            or _all_idle(table)
            or _is_idle_and_awaited(verdict.root.subject.rank, table)
        ):
            why = f"the job is left as it is{until} because {extension.why}"
            outcome = DetectorOutcome(table, verdict, silent_s=silent_s)
            return self._suspect(outcome, verdict.root, why)
        note = (
            f"silent for {silent_s:.0f} s: {verdict.root.message}; not reported as a hang{until} "
            f"because {extension.why}"
        )
        return DetectorOutcome(table, note=note)

    def _extension(self, root: Finding, table: JobSummary) -> stall.TimeExtension | None:
        if not by_name(root.cause).may_recover or root.cause in _NO_EXTENSION:
            return None
        state = next((state for state in table.ranks if state.rank == root.subject.rank), None)
        if state is None:
            return stall.extension_for_all(table.ranks, self.limits)
        is_awaited = any(state.pending for state in table.ranks)
        return stall.extension(state, self.limits, is_awaited=is_awaited)

    def judge(self, table: JobSummary) -> Verdict:
        """Return the verdict for ``table``, with the source around the calls of all ranks."""
        return hang.judge_hang(
            table.ranks,
            table.groups,
            world_size=table.world_size,
            source=_source_contexts(table.ranks),
        )


def refine_with_source(
    verdict: Verdict,
    ranks: Sequence[RankState],
    groups: Mapping[str, ProcessGroupInfo],
    lint: SourceLint | None = None,
    wait_s: float = source_lint.OFFLINE_LIMIT_S,
) -> Verdict:
    """Replace the root cause by the one that the linter found, if known within ``wait_s``."""
    if not source_match.is_refinable(verdict, ranks):
        return verdict
    lint = lint or SourceLint(wait_s)
    lint.start(ranks)
    hints = lint.hints(wait_s)
    if not hints:
        return verdict
    return source_match.refine(verdict, ranks, groups, _source_contexts(ranks), hints)


def _progress(table: JobSummary, rank: int | None) -> float:
    """Return when that rank last advanced; any rank if it is None or unknown."""
    return next((state.progress for state in table.ranks if state.rank == rank), table.silent_since)


def _only_timeouts(table: JobSummary, root: Finding) -> bool:
    """Return whether all dead ranks lost a peer, some by a timeout, and the root is not dead."""
    dead = [state for state in table.ranks if state.life == ProcessState.DEAD or roots.died(state)]
    return all(roots.is_echo(state) and state.rank != root.subject.rank for state in dead) and any(
        roots.timed_out(state) for state in dead
    )


def _all_idle(table: JobSummary) -> bool:
    """Return whether all living ranks are in no call, after a step or their script, and idle."""
    alive = [state for state in table.ranks if state.life != ProcessState.DEAD]
    return len(table.ranks) == table.world_size and all(
        state.life in (ProcessState.RUNNING, ProcessState.DISK)
        and (state.ended is not None or not stall.is_before_first_step(state))
        and not state.pending
        and stall.visible_phase(state) is None
        and stall.describe_activity(state) is None
        for state in alive
    )


def _is_idle_and_awaited(rank: int | None, table: JobSummary) -> bool:
    """Return whether others wait in calls for this rank, which does nothing and is in no phase.

    An evaluation computes, in the rank or in another process.
    """
    state = next((state for state in table.ranks if state.rank == rank), None)
    return (
        state is not None
        and any(other.pending for other in table.ranks if other.rank != rank)
        and not state.phase
        and stall.visible_phase(state) in (None, stall.EVALUATION)
        and stall.describe_activity(state) is None
    )


def _needs_stacks(state: RankState) -> bool:
    """Return whether a living rank has fewer than two stacks, for no reported reason."""
    return (
        state.life not in (ProcessState.DEAD, ProcessState.UNKNOWN)
        and len(state.stacks) < 2
        and not state.unseen
    )


def _source_contexts(ranks: Sequence[RankState]) -> dict[SourceLine, SourceContext]:
    """Read the source around the pending and newest calls of ranks, and around their callers."""
    calls = [call for state in ranks for call in (*state.pending, *state.recent[-MAX_CALLS:])]
    level = {line for call in calls for line in (call.site, call.caller) if line is not None}
    level |= {line for state in ranks for line in state.steady}
    level |= {state.raised.place for state in ranks if state.raised and state.raised.place}
    level |= compared_frames(ranks)
    contexts: dict[SourceLine, SourceContext] = {}
    for _ in range(MAX_CALLER_LEVELS + 1):
        lines = sorted(level - contexts.keys(), key=str)[:MAX_LINES]
        for line in lines:
            context = source_context.read_source_context(line)
            if isinstance(context, SourceContext):
                contexts[line] = context
        level = {caller for line in lines if line in contexts for caller in contexts[line].callers}
    return contexts

"""The state of the whole job at the time of a verdict, for the recovery policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.rank_table import RankState, StepProblem

if TYPE_CHECKING:  # the launcher imports this module and needs neither numpy nor py-spy
    from holdfast.watcher.job_summary import JobSummary

#: A problem that the loop reported earlier than this did not end the job.
RECENT_PROBLEM_S = 60.0


class JobState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was observed of the whole job when it failed, besides the verdict.

    ``step`` is the highest step of any rank, ``counted`` the number of steps since this start; if
    both are equal, the script may count from 0 at every start. ``saved`` is the step of the newest
    checkpoint committed since this start, at ``saved_at``; ``loaded`` that of the checkpoint it
    resumed from. ``progressed`` is when a rank last advanced (Unix seconds; None: unknown).
    ``ran_s`` is the run time in seconds. ``hosts`` and ``nodes`` are by rank. ``namesakes``
    identifies the agent of ranks on hosts that share a name. ``waiting`` is the number of standby
    nodes, ``loaders`` the maximum number of data-loader workers of a rank. ``trouble`` is the last
    problem that ``holdfast.loop`` reported. ``preempted`` is the exit status after a scheduler's
    warning. ``in_place``: survivors can accept a replacement rank. ``dead`` ranks ended with a
    status other than 0.
    """

    step: int | None = None
    counted: int = 0
    saved: int | None = None
    saved_at: float | None = None
    loaded: int | None = None
    ran_s: float = 0.0
    progressed: float | None = None
    hosts: dict[int, str] = {}
    nodes: dict[int, int] = {}
    namesakes: dict[int, str] = {}
    waiting: int = 0
    loaders: int | None = None
    trouble: StepProblem | None = None
    preempted: int | None = None
    in_place: bool = False
    dead: tuple[int, ...] = ()


def build_job_state(
    table: JobSummary, node_of: Mapping[int, int], agents: Mapping[int, str] | None = None
) -> JobState:
    """Summarize ``table``; ``node_of`` maps ranks to nodes, ``agents`` nodes to agents."""
    ranks = table.ranks
    furthest = max(
        ranks, key=lambda state: (state.step or 0, state.counted), default=RankState(rank=0)
    )
    problems = [
        state.trouble
        for state in ranks
        if state.trouble is not None and table.time - state.trouble.time < RECENT_PROBLEM_S
    ]
    started = min((state.started for state in ranks if state.started), default=table.time)
    return JobState(
        step=furthest.step,
        counted=furthest.counted,
        saved=_maximum(state.saved for state in ranks),
        loaded=_maximum(state.loaded for state in ranks),
        saved_at=max((state.saved_at for state in ranks if state.saved_at), default=None),
        ran_s=round(max(table.time - started, 0.0), 3),
        progressed=table.silent_since or None,
        hosts={state.rank: state.host for state in ranks if state.host},
        nodes=dict(node_of),
        namesakes=_agents_on_shared_names(ranks, node_of, agents or {}),
        loaders=max((len(state.children) for state in ranks), default=0) or None,
        trouble=max(problems, key=lambda problem: (problem.here, problem.time), default=None),
        dead=tuple(state.rank for state in ranks if state.exit_code or state.raised is not None),
        preempted=_maximum(state.preempted for state in ranks),
    )


def _agents_on_shared_names(
    ranks: Iterable[RankState], node_of: Mapping[int, int], agents: Mapping[int, str]
) -> dict[int, str]:
    """Return the agent of each rank whose host name several nodes share (often containers)."""
    nodes: dict[str, set[int]] = defaultdict(set)
    for state in ranks:
        if state.host and state.rank in node_of:
            nodes[state.host].add(node_of[state.rank])
    return {
        state.rank: agent
        for state in ranks
        if len(nodes.get(state.host, ())) > 1
        and state.rank in node_of
        and (agent := agents.get(node_of[state.rank]))
    }


def _maximum(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

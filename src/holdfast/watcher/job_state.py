"""The state of the whole job at the time of a verdict, for the recovery policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.core.failures import JobState
from holdfast.core.rank_table import RankState

if TYPE_CHECKING:  # the launcher imports this module and needs neither numpy nor py-spy
    from holdfast.watcher.job_summary import JobSummary

#: A problem that the loop reported earlier than this did not end the job.
RECENT_PROBLEM_S = 60.0


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

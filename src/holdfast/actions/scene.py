"""What the watcher tells the policy beside the verdict: how far the job is, what it saved, who is where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.actions.policy import Scene
from holdfast.facts.node import Summary
from holdfast.facts.ranks import RankState

#: A trouble that the loop noted ends the job within seconds; what it noted earlier did not.
FRESH_S = 60.0


def scene(table: Summary, node_of: Mapping[int, int], agents: Mapping[int, str] | None = None) -> Scene:
    """The scene of a job in ``table``; ``node_of`` tells the node of each rank, ``agents`` who runs each node."""
    ranks = table.ranks
    furthest = max(ranks, key=lambda state: (state.step or 0, state.counted), default=RankState(rank=0))
    troubles = [each for state in ranks if (each := state.trouble) is not None and table.time - each.time < FRESH_S]
    begun = min((state.started for state in ranks if state.started), default=table.time)
    return Scene(
        step=furthest.step,
        counted=furthest.counted,
        saved=_most(state.saved for state in ranks),
        loaded=_most(state.loaded for state in ranks),
        ran_s=round(max(table.time - begun, 0.0), 3),
        hosts={state.rank: state.host for state in ranks if state.host},
        nodes=dict(node_of),
        namesakes=_namesakes(ranks, node_of, agents or {}),
        loaders=max((len(state.children) for state in ranks), default=0) or None,
        trouble=max(troubles, key=lambda each: (each.here, each.time), default=None),
        dead=tuple(state.rank for state in ranks if state.exit_code or state.raised is not None),
        preempted=_most(state.preempted for state in ranks),
    )


def _namesakes(
    ranks: Iterable[RankState], node_of: Mapping[int, int], agents: Mapping[int, str]
) -> dict[int, str]:  # fmt: skip
    """By rank the agent, where several nodes have the name of its host (containers, mostly)."""
    nodes: dict[str, set[int]] = defaultdict(set)
    for state in ranks:
        if state.host and state.rank in node_of:
            nodes[state.host].add(node_of[state.rank])
    shared = [state.rank for state in ranks if len(nodes.get(state.host, ())) > 1]
    return {rank: agent for rank in shared if rank in node_of and (agent := agents.get(node_of[rank]))}


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)

"""Explains nodes that do not answer while ranks of the others wait for them or lost a peer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.remedies import DRAIN
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessState, RankState
from holdfast.core.text import pluralize
from holdfast.watcher.rules import roots
from holdfast.watcher.rules.hang_case import HangCase
from holdfast.watcher.rules.placeholders import fill_remedy
from holdfast.watcher.rules.stall import is_node_silent


def explain_silent_nodes(case: HangCase) -> list[Finding]:
    """Name the hosts that do not answer.

    Unless most hosts answer, either side can be the one that is cut off: the level is unknown.
    """
    silent, answering = _by_node(case.ranks.values(), silent=True), _by_node(case.ranks.values())
    here = [state for states in answering.values() for state in states]
    dead = [state for state in here if roots.died(state)]
    is_missed = bool(dead) or any(state.pending for state in here)
    if not is_missed or not all(roots.is_echo(state) for state in dead):
        return []
    is_minority = len(silent) < len(answering)
    return [_silent_node(states, here, is_minority=is_minority) for states in silent.values()]


def _by_node(
    states: Collection[RankState], *, silent: bool = False
) -> dict[tuple[str, str], list[RankState]]:
    nodes: dict[tuple[str, str], list[RankState]] = defaultdict(list)
    for state in states:
        if is_node_silent(state) is silent:
            nodes[state.host, state.node].append(state)
    return nodes


def _silent_node(
    states: Sequence[RankState], here: Sequence[RankState], *, is_minority: bool
) -> Finding:
    hosts = sorted({state.host for state in here})
    others = f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} other hosts"
    who, age_s = describe_ranks([state.rank for state in states]), states[0].node_silent_s
    message = (
        f"host {states[0].host or 'unknown'} ({who}) has not answered for {age_s:.0f} s: it is "
        f"down, or the network between it and {others} is interrupted"
    )
    alive = [state.rank for state in here if state.life != ProcessState.DEAD]
    facts = [Fact(text=f"no answer for {age_s:.1f} s", origin=f"the watcher of {others}")]
    if alive:
        text = f"{pluralize(len(alive), 'rank')} alive: {describe_ranks(alive)}"
        facts.append(Fact(text=text, origin=f"processes of {others}"))
    remedies = [fill_remedy(remedy, {"HOST": states[0].host}) for remedy in PEER_LOST.remedies]
    if not is_minority:
        remedies = [remedy for remedy in remedies if remedy.text != DRAIN.text]
    return make_finding(
        PEER_LOST,
        message,
        level=Level.ERROR if is_minority else Level.UNKNOWN,
        subject=Subject(rank=states[0].rank, host=states[0].host or None),
        evidence=tuple(facts),
        remedies=tuple(remedies),
        confidence=0.85,
    )

"""Finds which of several dead ranks died first, and which of them only lost a peer.

Ranks are ordered by the time at which they ended; a death by a signal precedes the exits within
:data:`SIMULTANEOUS_S` of it, because no exit of a peer sends a signal.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessState, RankState, RecordedCall
from holdfast.watcher.rules import roots
from holdfast.watcher.rules.common_exception import explain_common_exception
from holdfast.watcher.rules.hang_case import HangCase, call_text, describe_awaited_call

#: Deaths within this time are not ordered: clocks differ, and agents collect exits 10 times a
#: second.
SIMULTANEOUS_S = 2.0


def explain_dead_ranks(case: HangCase) -> list[Finding]:
    """Explain the ranks that died of their own work, the first one first."""
    dead = [state for state in case.ranks.values() if roots.died(state)]
    begin = min(map(roots.time_of_death, dead), default=0.0) + SIMULTANEOUS_S
    dead.sort(
        key=lambda state: (
            roots.severity(state),
            max(roots.time_of_death(state), begin),
            not roots.is_killed(state),
            roots.time_of_death(state),
        )
    )
    if not dead or (
        case.divergence
        and all(
            roots.is_echo(state) or roots.sizes_differ(state) or state.exit_code == -6
            for state in dead
        )
    ):
        return []  # they died of the mismatch (gloo aborts on it) or of each other
    own = [state for state in dead if not roots.is_echo(state)]
    if not own:  # all deaths are echoes: a rank that exited quietly, or is still alive, is the root
        left = [
            state
            for state in case.ranks.values()
            if (state.life == ProcessState.DEAD or state.ended is not None)
            and not roots.died(state)
        ]
        text = _describe_failed_call(case, dead)
        found = [roots.explain_root(state, case.source, text) for state in left]
        return found or _disappeared(case, dead) or _late(case, dead)
    if len(own) == case.world_size > 1 and _is_common(own):
        return [explain_common_exception(own)]
    is_missed = len(own) < len(dead)  # others lost their connection to it
    return [
        roots.explain_root(
            state,
            case.source,
            describe_awaited_call(case, state.rank)
            if is_missed or case.graph.waiting_for(state.rank)
            else "",
        )
        for state in own
    ]


def _is_common(dead: Sequence[RankState]) -> bool:
    """Return whether all raised one type of exception, at one line or with one text."""
    raised = [state.raised for state in dead if state.raised is not None]
    return (
        len(raised) == len(dead)
        and len({error.type for error in raised}) == 1
        and 1 in (len({error.place for error in raised}), len({error.text for error in raised}))
    )


def _disappeared(case: HangCase, survivors: Sequence[RankState]) -> list[Finding]:
    """Explain ranks whose end was not recorded, if ``survivors`` lost a peer in a call.

    A rank that did not enter that call was gone before it. If all entered it, the first of several
    is unknown.
    """
    unobserved = [state for state in case.ranks.values() if roots.is_unobserved(state)]
    call = _failed_call(survivors)
    behind = [
        state
        for state in unobserved
        if call is not None and _last_entered(state, call.group) < call.sequence
    ]
    text = _describe_failed_call(case, survivors)
    if all(roots.timed_out(state) for state in survivors):
        return [roots.explain_root(state, case.source, text) for state in behind]
    missing = [rank for rank in range(case.world_size) if rank not in case.ranks]
    if missing and not unobserved:
        return [_no_data(missing, survivors, text)]
    findings = [roots.explain_disappearance(state, text) for state in behind or unobserved]
    if behind or len(findings) == 1:
        return findings
    return [replace(finding, level=Level.UNKNOWN, confidence=0.3) for finding in findings]


def have_only_timed_out(ranks: Sequence[RankState]) -> bool:
    """Return whether all dead ranks lost a peer, and some because a wait timed out.

    The awaited rank may be alive then.
    """
    dead = [state for state in ranks if roots.died(state)]
    return all(map(roots.is_echo, dead)) and any(map(roots.timed_out, dead))


def _late(case: HangCase, dead: Sequence[RankState]) -> list[Finding]:
    """Explain living ranks that did not enter the call in which others timed out."""
    call = _failed_call(dead)
    if call is None or not have_only_timed_out(dead):
        return []
    text = call_text(call, case.groups)
    return [
        roots.explain_root(state, case.source, text)
        for state in case.ranks.values()
        if not roots.died(state) and _last_entered(state, call.group) < call.sequence
    ]


def _no_data(missing: Sequence[int], survivors: Sequence[RankState], call: str) -> Finding:
    raised = [(state.rank, state.raised) for state in survivors if state.raised is not None]
    return make_finding(
        PEER_LOST,
        f"no data from {describe_ranks(missing)}; other ranks lost their connection in {call}",
        subject=Subject(rank=missing[0]),
        evidence=tuple(
            Fact(text=f"{error.type}: {error.text}", origin=f"trace of rank {rank}", rank=rank)
            for rank, error in raised[:4]
        ),
        confidence=0.7,
    )


def _last_entered(state: RankState, group: str) -> int:
    return state.groups[group].entered if group in state.groups else 0


def _failed_call(dead: Sequence[RankState]) -> RecordedCall | None:
    """Return the call in which ranks lost their peer."""
    calls = [call for state in dead for call in (*state.recent, *state.pending)]
    return next((call for call in reversed(calls) if call.failed or call.completed is None), None)


def _describe_failed_call(case: HangCase, dead: Sequence[RankState]) -> str:
    call = _failed_call(dead)
    return call_text(call, case.groups) if call is not None else "a collective"

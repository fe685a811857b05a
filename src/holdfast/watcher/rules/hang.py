"""Judges a hang or failure from the rank table: root, consequences, ruled-out causes, missing data.

The live watcher, trace files and flight-recorder dumps share this code. The rules run in this
order: a rank died; ranks diverged (a mismatch explains everything after it); wait cycle; send or
recv without a partner; ranks that others wait for and that wait for no rank; without any waiting,
ranks still running.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.causes import by_name
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.causes.sync.p2p_without_partner import P2P_WITHOUT_PARTNER
from holdfast.core.findings import (
    Cause,
    Fact,
    Finding,
    Level,
    RuledOut,
    Subject,
    Verdict,
    make_finding,
)
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import ProcessGroupInfo, ProcessState, RankState, RecordedCall
from holdfast.watcher.rules import build_locks, call_divergence, mismatch, roots, wait_for_graph
from holdfast.watcher.rules.call_sites import SourceContexts
from holdfast.watcher.rules.ruled_out import contradicted_causes, contradicted_straggler
from holdfast.watcher.rules.subjects import rank_subject
from holdfast.watcher.rules.wait_for_graph import STORE_CALLS, WaitEdges, WaitGraph

QUESTION = "Why did the job hang?"
QUESTION_FAILED = "Why did the job fail?"


@dataclass(frozen=True)
class HangCase:
    """Input of the rules: ranks, groups, source contexts, and what is derived from them."""

    ranks: Mapping[int, RankState]
    groups: Mapping[str, ProcessGroupInfo]
    world_size: int
    source: SourceContexts
    graph: WaitGraph
    divergence: call_divergence.CallDivergence | None


def judge_hang(
    ranks: Sequence[RankState],
    groups: Mapping[str, ProcessGroupInfo],
    *,
    world_size: int,
    source: SourceContexts | None = None,
) -> Verdict:
    """Judge a silent job, or one in which a rank died; ``root`` is None if neither applies."""
    case = HangCase(
        {state.rank: state for state in ranks},
        groups,
        world_size,
        source or {},
        wait_for_graph.build_wait_graph(ranks, groups, world_size),
        call_divergence.find_divergence(ranks),
    )
    found = [finding for rule in _RULES for finding in rule(case)] or _blocked_alone(case)
    dead = any(roots.died(state) for state in ranks)
    root = found[0] if found else None
    return Verdict(
        question=QUESTION_FAILED if dead else QUESTION,
        root=root,
        consequences=consequences(case, root) if root else (),
        suspects=tuple(found[1:4]),
        ruled_out=_ruled_out(case, root) if root else (),
        unseen=_unseen(case),
    )


# ---- the rules, the most specific first


def _stale_build_lock(case: HangCase) -> list[Finding]:
    if any(roots.died(state) for state in case.ranks.values()):
        return []
    return build_locks.stale_locks(case.ranks.values())


def _dead_ranks(case: HangCase) -> list[Finding]:
    dead = [state for state in case.ranks.values() if roots.died(state)]
    dead.sort(key=lambda state: (roots.severity(state), state.ended.time if state.ended else 0.0))
    if not dead or (
        case.divergence and all(roots.is_echo(state) or state.exit_code == -6 for state in dead)
    ):
        return []  # they died of the mismatch (gloo aborts on it) or of each other
    own = [state for state in dead if not roots.is_echo(state)]
    if not own:  # all deaths are echoes: a rank that exited quietly, or is still alive, is the root
        left = [
            state
            for state in case.ranks.values()
            if state.life == ProcessState.DEAD and not roots.died(state)
        ]
        text = _describe_failed_call(case, dead)
        return [roots.explain_root(state, case.source, text) for state in left] or _disappeared(
            case, dead
        )
    if (
        len(own) == case.world_size > 1
        and len({state.raised.type for state in own if state.raised}) == 1
    ):
        return [mismatch.explain_common_exception(own)]
    is_missed = len(own) < len(dead)  # others lost their connection to it
    return [
        roots.explain_root(
            state,
            case.source,
            _describe_awaited_call(case, state.rank)
            if is_missed or case.graph.waiting_for(state.rank)
            else "",
        )
        for state in own
    ]


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


def _diverged(case: HangCase) -> list[Finding]:
    """Explain a mismatch, or a wait for a rank that exited, by the first call from another line."""
    roots_ = [case.ranks[rank] for rank in case.graph.roots if rank in case.ranks]
    all_exited = bool(roots_) and all(
        state.life == ProcessState.DEAD or state.ended is not None for state in roots_
    )
    divergence = case.divergence
    if divergence is not None or all_exited:
        by_line = call_divergence.find_line_divergence(list(case.ranks.values()))
        if by_line is not None and (
            divergence is None or by_line.usual.entered <= divergence.usual.entered
        ):
            finding = mismatch.explain_line_divergence(by_line, case.ranks, case.source)
            if finding is not None:
                return [finding]
    if divergence is None:
        return []
    return [mismatch.explain_mismatch(divergence, case.ranks, case.source)]


def _new_group(case: HangCase) -> list[Finding]:
    for wait in case.graph.waits:
        absent = [case.ranks[rank] for rank in wait.awaited if rank in case.ranks]
        if wait.operation.group.startswith("new_group") and any(
            state.pending or state.ended for state in absent
        ):
            return [mismatch.explain_new_group(wait, case.ranks, case.source)]
    return []


def _stopped(case: HangCase) -> list[Finding]:
    """Explain ranks that were stopped inside a call that all ranks entered."""
    inside = {
        rank: wait.operation
        for wait in case.graph.waits
        if not wait.awaited
        for rank in wait.waiters
    }
    return [
        roots.explain_root(case.ranks[rank], case.source, call_text(call, case.groups))
        for rank, call in sorted(inside.items())
        if case.ranks[rank].life == ProcessState.STOPPED
    ]


def wait_cycle(case: HangCase) -> list[Finding]:
    """Explain ranks that wait for each other in a cycle."""
    cycle = case.graph.cycle
    if not cycle:
        return []
    calls = [
        f"rank {rank} in {call_text(wait.operation, case.groups)}{line_text(wait.operation)}"
        for rank, wait in cycle
    ]
    peers = [(rank, wait) for rank, wait in cycle if wait.operation.is_point_to_point]
    facts = tuple(_call_fact(case, rank, wait.operation) for rank, wait in cycle)
    if peers:
        rank, wait = peers[0]
        return [_without_partner(case, wait, rank, facts)]
    # Most ranks are on one side of the cycle; a rank on the other side inverted the order.
    first, wait = min(cycle, key=lambda edge: len(edge[1].waiters))
    message = f"{describe_ranks([rank for rank, _ in cycle])} form a wait cycle: " + ", ".join(
        calls[:6]
    )
    subject = subject_of(case, first, wait.operation)
    return [
        make_finding(
            COLLECTIVE_ORDER_INVERSION,
            message,
            subject=subject,
            evidence=facts,
            confidence=0.95,
        )
    ]


def _unmatched_point_to_point(case: HangCase) -> list[Finding]:
    found = []
    for wait in case.graph.waits:
        if not wait.operation.is_point_to_point or not wait.awaited:
            continue
        peer = case.ranks.get(wait.awaited[0])
        if peer is not None and peer.life == ProcessState.DEAD and not roots.died(peer):
            facts = (_call_fact(case, wait.waiters[0], wait.operation),)
            found.append(_without_partner(case, wait, wait.waiters[0], facts))
    return found


def _without_partner(
    case: HangCase, wait: WaitEdges, rank: int, facts: tuple[Fact, ...]
) -> Finding:
    call = wait.operation
    other = "recv" if call.name == "send" else "send"
    message = (
        f"rank {call.peer} never posted the {other} for rank {rank}'s {call.name}{line_text(call)}"
    )
    return make_finding(
        P2P_WITHOUT_PARTNER,
        message,
        subject=subject_of(case, rank, call),
        evidence=facts,
        confidence=0.9,
    )


def _awaited_ranks(case: HangCase) -> list[Finding]:
    states = [case.ranks[rank] for rank in case.graph.roots if rank in case.ranks]
    states.sort(
        key=lambda state: (
            roots.severity(state),
            -len(case.graph.waiting_for(state.rank)),
            state.rank,
        )
    )
    found = [
        roots.explain_root(state, case.source, _describe_awaited_call(case, state.rank))
        for state in states
    ]
    for rank in case.graph.roots:
        if rank not in case.ranks:
            call = _describe_awaited_call(case, rank)
            text = f"rank {rank} never entered {call}; no data from this rank"
            found.append(make_finding(PEER_LOST, text, subject=Subject(rank=rank), confidence=0.5))
    return found


def stuck_transport(case: HangCase) -> list[Finding]:
    """Explain an incomplete call that all ranks have entered: the network or a device hangs."""
    stuck = [
        wait
        for wait in case.graph.waits
        if not wait.awaited and not wait.operation.is_point_to_point
    ]
    if not stuck:
        return []
    call, waiters = stuck[0].operation, stuck[0].waiters
    left = len(waiters) < len(
        wait_for_graph.members_of(call.group, case.groups, case.world_size) or waiters
    )
    verb = "is" if len(waiters) == 1 else "are"
    who = f"{describe_ranks(waiters)} {verb} still in" if left else "all ranks are in"
    others = ", which the other ranks have left" if left else ", which does not complete"
    message = f"{who} {call_text(call, case.groups)}{line_text(call)}{others}: check the network"
    facts = tuple(_call_fact(case, rank, call) for rank in waiters[:4])
    return [make_finding(NETWORK_FABRIC_FAULT, message, evidence=facts, confidence=0.4)]


def _blocked_alone(case: HangCase) -> list[Finding]:
    """Explain each living rank on its own if no rank waits in a collective and none advances."""
    states = list(case.ranks.values())
    if any(state.pending for state in states):
        return []
    blocked = [
        state
        for state in states
        if state.life != ProcessState.DEAD
        and (state.stacks or state.life in (ProcessState.STOPPED, ProcessState.DISK))
    ]
    blocked.sort(key=lambda state: (roots.severity(state), state.rank))
    ended = [state.rank for state in states if state.life == ProcessState.DEAD]
    verb = "has" if len(ended) == 1 else "have"
    others = f"; {describe_ranks(ended)} {verb} ended" if ended else ""
    return [roots.explain_single_rank(state, case.source, others) for state in blocked]


_RULES = (
    _dead_ranks,
    _stale_build_lock,
    _diverged,
    _new_group,
    _stopped,
    wait_cycle,
    _unmatched_point_to_point,
    _awaited_ranks,
    stuck_transport,
)


# ---- consequences, ruled-out causes, missing data


def consequences(case: HangCase, root: Finding) -> tuple[Finding, ...]:
    """Return the consequences of the root: ranks that wait, and ranks that failed after it."""
    cause = by_name(root.cause)
    waiting = [_waiting(case, cause, wait, root) for wait in case.graph.waits[:64]]
    return (
        *(finding for finding in waiting if finding is not None),
        *failures(tuple(case.ranks.values()), root),
    )


def failures(ranks: Sequence[RankState], root: Finding) -> tuple[Finding, ...]:
    """Return the findings about ranks that failed after the root did."""
    dead = [state for state in ranks if roots.died(state) and state.rank != root.subject.rank]
    return tuple(
        make_finding(
            by_name(root.cause),
            f"rank {state.rank} then failed: {_describe_end(state)}",
            level=Level.NOTE,
            subject=Subject(rank=state.rank, host=state.host or None),
            remedies=root.remedies[:1],
        )
        for state in dead[:16]
    )


def _describe_end(state: RankState) -> str:
    if state.raised and state.raised.text:
        return f"{state.raised.type}: {state.raised.text.splitlines()[0][:120]}"
    return f"exit status {state.exit_code}"


def _waiting(case: HangCase, cause: Cause, wait: WaitEdges, root: Finding) -> Finding | None:
    waiters = [rank for rank in wait.waiters if rank != root.subject.rank]
    if not waiters:
        return None
    verb = "is" if len(waiters) == 1 else "are"
    target = f", waiting for {describe_ranks(wait.awaited)}" if wait.awaited else ""
    where = f"{call_text(wait.operation, case.groups)}{line_text(wait.operation)}"
    text = f"{describe_ranks(waiters)} {verb} blocked in {where}{target}"
    subject = subject_of(case, waiters[0], wait.operation)
    facts = (_call_fact(case, waiters[0], wait.operation),)
    return make_finding(
        cause, text, level=Level.NOTE, subject=subject, evidence=facts, remedies=root.remedies[:1]
    )


def _ruled_out(case: HangCase, root: Finding) -> tuple[RuledOut, ...]:
    state = case.ranks.get(root.subject.rank) if root.subject.rank is not None else None
    entries = (
        *contradicted_causes(
            list(case.ranks.values()),
            case.world_size,
            case.graph,
            diverged=case.divergence is not None,
        ),
        *contradicted_straggler(state),
    )
    return tuple(entry for entry in entries if entry.cause != root.cause)


def _unseen(case: HangCase) -> tuple[str, ...]:
    found: dict[str, list[int]] = defaultdict(list)
    for state in case.ranks.values():
        for text in state.unseen:
            found[text].append(state.rank)
    missing = [rank for rank in range(case.world_size) if rank not in case.ranks]
    if missing:
        found["no trace file and no summary"] = missing
    return tuple(f"{describe_ranks(ranks)}: {text}" for text, ranks in sorted(found.items()))


# ---- texts


def call_text(call: RecordedCall, groups: Mapping[str, ProcessGroupInfo]) -> str:
    """Describe a call: ``all_reduce #31``, with its group unless it is the default one."""
    if call.group == "checkpoint":
        return (
            f"the saving or loading of a checkpoint (agreement #{call.sequence} in the job's store)"
        )
    if call.group in STORE_CALLS or call.group.startswith("new_group"):
        return f"{call.name} (the rendezvous store)"
    peer = (
        f" {'to' if call.name == 'send' else 'from'} rank {call.peer}"
        if call.is_point_to_point
        else ""
    )
    return f"{call.name}{peer} #{call.sequence}{_of_group(groups.get(call.group), call.group)}"


def _of_group(group: ProcessGroupInfo | None, name: str) -> str:
    described = group.description if group is not None else ""
    if described == "default_pg":
        return ""
    return f" of group {name!r}" + ("" if described in ("", "undefined") else f" ({described})")


def _describe_awaited_call(case: HangCase, rank: int) -> str:
    waiting = case.graph.waiting_for(rank)
    return (
        call_text(waiting[0].operation, case.groups) if waiting else "the collective of the others"
    )


def line_text(call: RecordedCall) -> str:
    """Return `` at train.py:41``, or an empty text if the call site is unknown."""
    return f" at {call.site.short}" if call.site else ""


def subject_of(case: HangCase, rank: int, call: RecordedCall) -> Subject:
    """Return the rank and the line at which it is in a call of that group."""
    state = case.ranks.get(rank)
    pending = state.pending if state else ()
    line = next((own for own in pending if own.group == call.group), call).site
    return rank_subject(rank, state.host if state else None, line)


def _call_fact(case: HangCase, rank: int, call: RecordedCall) -> Fact:
    state = case.ranks.get(rank)
    what = f"{call_text(call, case.groups)}, {call.dtype} {list(call.shape)}{line_text(call)}"
    text = f"in {what}, entered and not completed"
    return Fact(
        text=text,
        origin=f"trace of rank {rank}",
        rank=rank,
        host=(state.host if state else None) or None,
        time=call.entered,
    )

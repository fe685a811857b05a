"""Judges a hang or failure from the rank table: root, consequences, ruled-out causes, missing data.

The live watcher, trace files and flight-recorder dumps share this code. The rules run in this
order: a rank died; ranks diverged (a mismatch explains everything after it); wait cycle; send or
recv without a partner; ranks that others wait for and that wait for no rank; without any waiting,
ranks still running.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.causes.network.launch_arguments_differ import LAUNCH_ARGUMENTS_DIFFER
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.sync.collective_incomplete import COLLECTIVE_INCOMPLETE
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.core.findings import (
    Fact,
    Finding,
    RuledOut,
    Subject,
    Verdict,
    make_finding,
)
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import (
    ProcessGroupInfo,
    ProcessState,
    RankState,
)
from holdfast.watcher.rules import (
    build_locks,
    call_divergence,
    mismatch,
    new_groups,
    point_to_point,
    roots,
    wait_for_graph,
)
from holdfast.watcher.rules.call_sites import (
    SourceContexts,
    is_after_loop_of,
    left_loop_line,
    rank_guard,
)
from holdfast.watcher.rules.consequences import list_consequences
from holdfast.watcher.rules.dead_ranks import explain_dead_ranks
from holdfast.watcher.rules.hang_case import (
    HangCase,
    call_fact,
    call_text,
    describe_awaited_call,
    line_text,
    subject_of,
)
from holdfast.watcher.rules.ruled_out import (
    contradicted_causes,
    contradicted_straggler,
    is_one_host,
)
from holdfast.watcher.rules.silent_nodes import explain_silent_nodes
from holdfast.watcher.rules.subjects import rank_subject
from holdfast.watcher.rules.unreachable_store import explain_unreachable_store
from holdfast.watcher.rules.wait_for_graph import WaitEdges

QUESTION = "Why did the job hang?"
QUESTION_FAILED = "Why did the job fail?"


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
        call_divergence.find_divergence(ranks, sizes_differ=any(map(roots.sizes_differ, ranks))),
    )
    found = [finding for rule in _RULES for finding in rule(case)]
    found = found or stuck_transport(case) or _blocked_alone(case)
    dead = any(roots.died(state) for state in ranks)
    root = found[0] if found else None
    return Verdict(
        question=QUESTION_FAILED if dead else QUESTION,
        root=root,
        consequences=list_consequences(case, root) if root else (),
        suspects=_suspects(found),
        ruled_out=_ruled_out(case, root) if root else (),
        unseen=_unseen(case),
    )


def _suspects(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the other findings, without those about the rank and cause of an earlier one."""
    by_subject: dict[tuple[str, int | None], Finding] = {}
    for finding in found:
        by_subject.setdefault((finding.cause, finding.subject.rank), finding)
    return tuple(by_subject.values())[1:4]


# ---- the rules, the most specific first


def _stale_build_lock(case: HangCase) -> list[Finding]:
    if any(roots.died(state) for state in case.ranks.values()):
        return []
    return build_locks.stale_locks(case.ranks.values())


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
    finding = mismatch.explain_mismatch(divergence, case.ranks, case.source)
    return [
        replace(finding, evidence=(*finding.evidence, *roots.backend_errors(case.ranks.values())))
    ]


def _world_size(case: HangCase) -> list[Finding]:
    """Explain ranks that wait in init_process_group for more ranks than the job has."""
    for wait in case.graph.waits:
        absent = [rank for rank in wait.awaited if rank >= case.world_size]
        if wait.operation.name == "init_process_group" and absent:
            size, first = max(absent) + 1, wait.waiters[0]
            message = (
                f"{describe_ranks(wait.waiters)} called init_process_group with world_size={size}"
                f"{line_text(wait.operation)}, but the job has {case.world_size} ranks: it waits "
                f"for {describe_ranks(absent)}, which no launcher starts"
            )
            return [
                make_finding(
                    LAUNCH_ARGUMENTS_DIFFER,
                    message,
                    subject=subject_of(case, first, wait.operation),
                    evidence=(call_fact(case, first, wait.operation),),
                    confidence=0.95,
                )
            ]
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
    facts = tuple(call_fact(case, rank, wait.operation) for rank, wait in cycle)
    if peers:
        rank, wait = peers[0]
        return [point_to_point.explain_missing_partner(case, wait, rank, facts)]
    explained = _guarded_in_cycle(case, cycle, facts) or _left_loop_in_cycle(case, cycle, facts)
    if explained is not None:
        return [explained]
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


def _guarded_in_cycle(
    case: HangCase, cycle: Sequence[tuple[int, WaitEdges]], facts: tuple[Fact, ...]
) -> Finding | None:
    """Explain the only call of a cycle under a test of the rank, which lets no other rank enter."""
    calls = [wait.operation for _, wait in cycle]
    found = [
        (rank, wait, guarded)
        for (rank, wait), after in zip(cycle, (*calls[1:], calls[0]), strict=True)
        if (guarded := rank_guard(wait.operation, after, case.source)) is not None
    ]
    if len(found) != 1:
        return None
    rank, wait, (guard, line) = found[0]
    others = ", ".join(
        f"{describe_ranks(other.waiters)} in {call_text(other.operation, case.groups)}"
        f"{line_text(other.operation)}"
        for _, other in cycle
        if other is not wait
    )
    enters = "enters" if len(wait.waiters) == 1 else "enter"
    message = (
        f"only {describe_ranks(wait.waiters)} {enters} {call_text(wait.operation, case.groups)} at "
        f"{line.short} under {guard.text!r}; waiting meanwhile: {others}"
    )
    return make_finding(
        RANK_GUARDED_COLLECTIVE,
        message,
        subject=rank_subject(rank, case.ranks[rank].host or None, line),
        evidence=facts,
        confidence=0.9,
    )


def _left_loop_in_cycle(
    case: HangCase, cycle: Sequence[tuple[int, WaitEdges]], facts: tuple[Fact, ...]
) -> Finding | None:
    """Explain a cycle of two calls, one of them behind the loop around the other."""
    if len(cycle) != 2:
        return None
    for (rank, gone), (_, still) in (cycle, cycle[::-1]):
        if is_after_loop_of(gone.operation, still.operation, case.source):
            line = left_loop_line(still.operation, gone.operation, case.source)
            verb = "is" if len(still.waiters) == 1 else "are"
            message = (
                f"{describe_ranks(gone.waiters)} left the loop first and entered "
                f"{call_text(gone.operation, case.groups)}{line_text(gone.operation)}; "
                f"{describe_ranks(still.waiters)} {verb} still in the loop, in "
                f"{call_text(still.operation, case.groups)}{line_text(still.operation)}"
            )
            return make_finding(
                UNEVEN_INPUTS,
                message,
                subject=rank_subject(rank, case.ranks[rank].host or None, line),
                evidence=facts,
                confidence=0.85,
            )
    return None


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
        roots.explain_root(state, case.source, describe_awaited_call(case, state.rank))
        for state in states
    ]
    for rank in case.graph.roots:
        if rank not in case.ranks and rank < case.world_size:
            call = describe_awaited_call(case, rank)
            text = f"rank {rank} never entered {call}; no data from this rank"
            found.append(make_finding(PEER_LOST, text, subject=Subject(rank=rank), confidence=0.5))
    return found


def stuck_transport(case: HangCase) -> list[Finding]:
    """Explain an incomplete call that all ranks have entered: the network or a device hangs.

    If all ranks run on one host, it is not the network.
    """
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
    message = f"{who} {call_text(call, case.groups)}{line_text(call)}{others}"
    facts = tuple(call_fact(case, rank, call) for rank in waiters[:4])
    if is_one_host(case.ranks.values(), case.world_size):
        message += "; all ranks run on one host, so it is not the network"
        return [
            make_finding(
                COLLECTIVE_INCOMPLETE,
                message,
                subject=Subject(file=call.site.file, line=call.site.line)
                if call.site
                else Subject(),
                evidence=facts,
                confidence=0.4,
            )
        ]
    message += ": check the network"
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
    explain_silent_nodes,
    point_to_point.explain_larger_send,
    explain_dead_ranks,
    _stale_build_lock,
    _world_size,
    explain_unreachable_store,
    _diverged,
    new_groups.explain_uncalled,
    new_groups.explain_other_members,
    _stopped,
    point_to_point.explain_wrong_peer,
    wait_cycle,
    point_to_point.explain_ended_partner,
    _awaited_ranks,
)


# ---- ruled-out causes, missing data


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

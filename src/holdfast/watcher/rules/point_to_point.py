"""Explains sends without a receive and receives without a send."""

from __future__ import annotations

from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.causes.sync.p2p_without_partner import P2P_WITHOUT_PARTNER
from holdfast.core.findings import Fact, Finding, make_finding
from holdfast.core.rank_table import ProcessState, RankState, RecordedCall, SourceLine
from holdfast.watcher.rules import roots
from holdfast.watcher.rules.hang_case import (
    HangCase,
    call_fact,
    call_text,
    line_text,
    subject_of,
)
from holdfast.watcher.rules.subjects import rank_subject
from holdfast.watcher.rules.wait_for_graph import WaitEdges


def explain_wrong_peer(case: HangCase) -> list[Finding]:
    """Explain a recv from the wrong rank, or a send to the wrong one.

    The call has no partner, and another rank waits with the partner that it should have: one wrong
    number explains both. A pair of ranks that exchanged data before is right, and so is a line that
    exchanges data with one rank after another.
    """
    unmatched = [
        (wait.waiters[0], wait.operation)
        for wait in case.graph.waits
        if wait.operation.is_point_to_point and wait.awaited
    ]
    wrong = [
        (rank, call, other, other_call)
        for rank, call in unmatched
        for other, other_call in unmatched
        if other != call.peer
        and other_call.peer == rank
        and (call.name == "send") != (other_call.name == "send")
        and not _has_completed_before(case.ranks[rank], call)
        and not _completed_at(case.ranks[rank], call.site)
    ]
    wrong = [
        entry
        for entry in wrong
        if not any(entry[:2] == (partner, theirs) for _, _, partner, theirs in wrong)
    ]
    if len(wrong) != 1:
        return []
    rank, call, other, other_call = wrong[0]
    direction = "to" if call.name == "send" else "from"
    message = (
        f"rank {rank}'s {call.name} {direction} rank {call.peer}{line_text(call)} has no partner, "
        f"while rank {other} waits in {other_call.name} {'from' if direction == 'to' else 'to'} "
        f"rank {rank}{line_text(other_call)}: the peer should be rank {other}"
    )
    return [
        make_finding(
            P2P_WITHOUT_PARTNER,
            message,
            subject=subject_of(case, rank, call),
            evidence=(call_fact(case, rank, call), call_fact(case, other, other_call)),
            confidence=0.9,
        )
    ]


def _has_completed_before(state: RankState, call: RecordedCall) -> bool:
    return any(
        (each.name, each.peer) == (call.name, call.peer) and each.completed is not None
        for each in state.recent
    )


def _completed_at(state: RankState, site: SourceLine | None) -> bool:
    """Return whether a point-to-point call at this line has completed, with any peer."""
    if site is None:
        return False
    return any(
        each.is_point_to_point and each.site == site and each.completed is not None
        for each in state.recent
    )


def explain_larger_send(case: HangCase) -> list[Finding]:
    """Explain a send of more elements than its partner receives, of which the backend complained.

    The subject is the receiver if it received another number at that line before, else the sender.
    """
    dead = [state for state in case.ranks.values() if roots.died(state)]
    if not all(roots.is_echo(state) or roots.sizes_differ(state) for state in dead):
        return []
    for receiver in filter(roots.sizes_differ, dead):
        for received in receiver.recent:
            sender = case.ranks.get(-1 if received.peer is None else received.peer)
            sent = _send_for(received, receiver.rank, sender) if sender is not None else None
            if sender is not None and sent is not None and sent.elements > received.elements:
                return [_larger_send(sender, sent, receiver, received)]
    return []


def _send_for(received: RecordedCall, rank: int, sender: RankState) -> RecordedCall | None:
    """Return the send that ``rank`` receives in the call ``received``, which did not complete."""
    if received.name != "recv" or not (received.failed or received.completed is None):
        return None
    key = ("send", rank, received.tag, received.sequence)
    return next(
        (each for each in sender.recent if (each.name, each.peer, each.tag, each.sequence) == key),
        None,
    )


def _larger_send(
    sender: RankState, sent: RecordedCall, receiver: RankState, received: RecordedCall
) -> Finding:
    message = (
        f"rank {sender.rank} sends {sent.elements} elements {list(sent.shape)}{line_text(sent)} to "
        f"rank {receiver.rank}, which receives {received.elements} {list(received.shape)}"
        f"{line_text(received)}"
    )
    has_changed = any(
        each.site == received.site and each.elements != received.elements
        for each in receiver.recent
    )
    odd, call = (receiver, received) if has_changed else (sender, sent)
    return make_finding(
        MISMATCHED_SHAPE,
        message,
        subject=rank_subject(odd.rank, odd.host, call.site),
        evidence=roots.backend_errors((receiver,)),
        confidence=0.9,
    )


def explain_ended_partner(case: HangCase) -> list[Finding]:
    """Explain sends and receives whose partner has ended without the other call."""
    found = []
    for wait in case.graph.waits:
        if not wait.operation.is_point_to_point or not wait.awaited:
            continue
        peer = case.ranks.get(wait.awaited[0])
        if peer is not None and peer.life == ProcessState.DEAD and not roots.died(peer):
            facts = (call_fact(case, wait.waiters[0], wait.operation),)
            found.append(_without_partner(case, wait, wait.waiters[0], facts))
    return found


def explain_missing_partner(
    case: HangCase, wait: WaitEdges, rank: int, facts: tuple[Fact, ...]
) -> Finding:
    """Explain the wait of ``rank`` for the other call of its partner, which waits, too."""
    return _gone_on(case, wait, facts) or _without_partner(case, wait, rank, facts)


def _gone_on(case: HangCase, wait: WaitEdges, facts: tuple[Fact, ...]) -> Finding | None:
    """Explain a peer that is in a collective instead, although the waiting line is right.

    The line is right if it has exchanged data before. The subject is the line of the call that the
    peer left out: where it, or else another rank, made the partner of such a call before.
    """
    call, waiter = wait.operation, wait.waiters[0]
    peer = case.ranks.get(wait.awaited[0])
    theirs = (
        next((own for own in peer.pending if not own.is_point_to_point), None) if peer else None
    )
    if peer is None or theirs is None or not _completed_at(case.ranks[waiter], call.site):
        return None
    other = _partner_of(call)
    message = (
        f"rank {peer.rank} is in {call_text(theirs, case.groups)}{line_text(theirs)} without the "
        f"{other} for rank {waiter}'s {call.name}{line_text(call)}"
    )
    partners = [
        (state.rank == peer.rank, each.entered, each.site)
        for state in case.ranks.values()
        for each in state.recent
        if each.name == other
        and (each.peer, each.dtype, each.elements) == (waiter, call.dtype, call.elements)
        and each.completed is not None
        and each.site is not None
    ]
    site = theirs.site
    if partners:
        *_, usual = max(partners, key=lambda each: each[:2])
        message += f"; that {other} is usually made at {usual.short}"
        site = usual
    return make_finding(
        P2P_WITHOUT_PARTNER,
        message,
        subject=rank_subject(peer.rank, peer.host, site),
        evidence=(*facts, call_fact(case, peer.rank, theirs)),
        confidence=0.9,
    )


def _partner_of(call: RecordedCall) -> str:
    return "recv" if call.name == "send" else "send"


def _without_partner(
    case: HangCase, wait: WaitEdges, rank: int, facts: tuple[Fact, ...]
) -> Finding:
    call, peer = wait.operation, case.ranks.get(wait.awaited[0])
    message = (
        f"rank {call.peer} never posted the {_partner_of(call)} for rank {rank}'s {call.name}"
        f"{line_text(call)}"
    )
    for own in peer.pending if peer is not None else ():
        if (own.name, own.peer) == (_partner_of(call), rank) and own.tag != call.tag:
            message += f": that{line_text(own)} has tag {own.tag}, not {call.tag}"
    return make_finding(
        P2P_WITHOUT_PARTNER,
        message,
        subject=subject_of(case, rank, call),
        evidence=facts,
        confidence=0.9,
    )

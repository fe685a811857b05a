"""Judge a job by stacks alone: samples some seconds apart, without a record of collectives.

If some ranks wait in a collective, they wait for a rank that is elsewhere and does not advance
between the samples. Stacks contain less than trace files (not which all_reduce, nor of which
process group), which the confidence reflects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.causes import by_name
from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.causes.process.stalled_outside_collectives import STALLED_OUTSIDE_COLLECTIVES
from holdfast.causes.sync.collective_incomplete import COLLECTIVE_INCOMPLETE
from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.causes.sync.p2p_without_partner import P2P_WITHOUT_PARTNER
from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.causes.sync.store_wait import STORE_WAIT
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
from holdfast.core.rank_table import ProcessState, RankState, RecordedCall, ThreadStack
from holdfast.core.text import format_duration
from holdfast.diagnose.stacks.job_snapshot import (
    FROZEN_STATES,
    JobSnapshot,
    build_snapshot,
    stall_time_s,
)
from holdfast.diagnose.stacks.wait_kinds import StackWait, WaitKind
from holdfast.host.processes.user_code import innermost_user_frame
from holdfast.watcher.rules import blocked_ranks, build_locks, hang, roots, stall
from holdfast.watcher.rules.call_sites import SourceContexts, rank_guard
from holdfast.watcher.rules.ruled_out import is_one_host

MAX_SUSPECTS = 3
_MAX_FACTS = 4
_MAX_REASONS = 8


def judge(
    ranks: Sequence[RankState],
    threads: Mapping[int, Sequence[ThreadStack]],
    *,
    world_size: int,
    source: SourceContexts | None = None,
    gone: Sequence[int] = (),
    running: Collection[int] = (),
) -> Verdict:
    """Return the verdict over a job of which only stacks and process states are known.

    ``gone`` are ranks that had a process and have none; ``running`` are ranks whose main thread was
    on a core in every sample.
    """
    snapshot = build_snapshot(ranks, threads, world_size, source or {}, gone, running)
    findings = _apply_rules(snapshot)
    root = findings[0] if findings else None
    return Verdict(
        question=hang.QUESTION,
        root=root,
        consequences=tuple(_consequences(snapshot, root)) if root is not None else (),
        suspects=tuple(findings[1 : 1 + MAX_SUSPECTS]),
        ruled_out=tuple(_ruled_out(snapshot, root)),
        unseen=tuple(_unseen(snapshot)),
    )


# ---- rules, the most reliable first ------------------------------------------------------------


def _apply_rules(snapshot: JobSnapshot) -> list[Finding]:
    locked = build_locks.stale_locks(snapshot.ranks.values())
    if locked:
        return locked
    if not snapshot.stopped and _job_advances(snapshot):
        return []
    if snapshot.stopped or (snapshot.waits and snapshot.stuck_outside):
        return [_stuck_rank(snapshot, state) for state in snapshot.stuck_outside]
    if not snapshot.waits:
        return _stuck_without_waits(snapshot)
    if snapshot.gone:
        return [_lost_ranks(snapshot)]
    return _all_wait(snapshot) if snapshot.all_sampled else [_root_not_sampled(snapshot)]


def _job_advances(snapshot: JobSnapshot) -> bool:
    """Return whether a waiting rank has just arrived, or all wait for ranks that advance."""
    arrived = any(rank in snapshot.advancing for rank in snapshot.waits)
    return arrived or bool(snapshot.waits and snapshot.advancing and not snapshot.stuck_outside)


def _stuck_rank(snapshot: JobSnapshot, state: RankState) -> Finding:
    """Return the finding on a rank outside collectives, with what the others wait in if known."""
    if snapshot.waits:
        finding = roots.explain_root(state, snapshot.source, str(_usual_wait(snapshot)))
    else:
        finding = roots.explain_single_rank(state, snapshot.source, "")
    if state.life in FROZEN_STATES or any(not child.alive for child in state.children):
        return finding
    stalled_s = stall_time_s(state)
    since = f", for at least {format_duration(stalled_s)}" if stalled_s >= 1 else ""
    confidence = round(finding.confidence * snapshot.confidence_factor, 2)
    return replace(finding, message=finding.message + since, confidence=confidence)


def _lost_ranks(snapshot: JobSnapshot) -> Finding:
    verb = "have" if len(snapshot.gone) > 1 else "has"
    message = (
        f"{describe_ranks(snapshot.gone)} {verb} no process any more, "
        f"and the others are blocked in {_usual_wait(snapshot)}"
    )
    subject = Subject(rank=snapshot.gone[0])
    return make_finding(PEER_LOST, message, subject=subject, confidence=0.7)


def _root_not_sampled(snapshot: JobSnapshot) -> Finding:
    """Return the finding where all sampled ranks wait, so the root is among the others."""
    not_sampled = [rank for rank, state in snapshot.ranks.items() if not state.stacks]
    message = (
        f"{_describe_wait(snapshot.waits, _usual_wait(snapshot))}; the rank that they wait for was "
        f"not sampled: inspect {describe_ranks((*snapshot.absent, *not_sampled))}"
    )
    return make_finding(
        RANK_MISSING_COLLECTIVE,
        message,
        level=Level.UNKNOWN,
        evidence=_facts(snapshot, snapshot.waits),
        confidence=0.3,
    )


def _all_wait(snapshot: JobSnapshot) -> list[Finding]:
    """Return findings where all ranks wait: in one call (transport) or several (divergence)."""
    groups = _ranks_by_wait(snapshot)
    if len(groups) > 1:
        return [_diverged(snapshot, groups)]
    shares = [state.cpu_share or 0.0 for state in snapshot.ranks.values()]
    if any(share >= blocked_ranks.IDLE_CPU_SHARE for share in shares):
        return []  # a rank computes in the call
    wait = next(iter(groups))
    cause, check = NETWORK_FABRIC_FAULT, "check the network and the devices"
    if is_one_host(snapshot.ranks.values(), snapshot.world_size):
        cause, check = COLLECTIVE_INCOMPLETE, "all ranks run on one host, so it is not the network"
    if wait.kind == WaitKind.STORE:
        cause, check = STORE_WAIT, "check the rendezvous store"
    message = f"all {len(snapshot.ranks)} ranks are in {wait}, and it does not complete: {check}"
    facts = _facts(snapshot, snapshot.waits)
    return [make_finding(cause, message, evidence=facts, confidence=0.35)]


def _diverged(snapshot: JobSnapshot, groups: Mapping[StackWait, Sequence[int]]) -> Finding:
    """Return the finding on ranks in different calls.

    Suspects are the minority, or the ranks whose call depends on a rank check in the source.
    """
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), group[1][0]))
    (odd, few), (usual, most) = ordered[0], ordered[-1]
    facts = _facts(snapshot, (*few[:2], *most[:2]))

    def finding(cause: Cause, message: str, confidence: float) -> Finding:
        subject = _subject(snapshot, few[0], odd)
        return make_finding(cause, message, subject=subject, evidence=facts, confidence=confidence)

    both = f"{_describe_wait(few, odd)}, {_describe_wait(most, usual)}"
    if odd.kind == WaitKind.POINT_TO_POINT and usual.kind == WaitKind.COLLECTIVE:
        message = (
            f"{_describe_wait(few, odd)}, and no rank is in the matching call: "
            f"{_describe_wait(most, usual)}"
        )
        return finding(P2P_WITHOUT_PARTNER, message, 0.6)
    message = f"{both}: the ranks have diverged"
    if any(wait.kind != WaitKind.COLLECTIVE for wait in groups):
        return replace(finding(COLLECTIVE_MISMATCH, message, 0.2), level=Level.UNKNOWN)
    odd_guard = rank_guard(_as_call(odd), _as_call(usual), snapshot.source)
    usual_guard = rank_guard(_as_call(usual), _as_call(odd), snapshot.source)
    if odd_guard is not None and usual_guard is not None:
        message = f"{both}: the two branches of the rank check in line {odd_guard[0].line}"
        return finding(COLLECTIVE_ORDER_INVERSION, message, 0.5)
    tie = len(few) == len(most)
    guard = odd_guard
    if guard is None and tie and usual_guard is not None:
        guard, odd, few = usual_guard, usual, most
    if guard is not None:
        message = (
            f"only {describe_ranks(few)} can enter {odd}: "
            f"it depends on the rank check in line {guard[0].line}"
        )
        return finding(RANK_GUARDED_COLLECTIVE, message, 0.7)
    message += " (a tie: neither side is in the minority)" if tie else ""
    return finding(COLLECTIVE_MISMATCH, message, 0.25 if tie else 0.45)


def _stuck_without_waits(snapshot: JobSnapshot) -> list[Finding]:
    """Return findings where no rank waits for another.

    A rank that does not advance is named if a file, a device or a worker explains it. Otherwise an
    outlier is an error, and ranks that are all at one line are a warning: they may just sleep.
    """
    stuck = snapshot.stuck_outside
    findings = [_stuck_rank(snapshot, state) for state in stuck]
    explained = [
        finding for finding in findings if finding.cause != STALLED_OUTSIDE_COLLECTIVES.name
    ]
    if explained or len(stuck) < len(snapshot.ranks):
        return explained
    if snapshot.gone and len(stuck) < snapshot.world_size:
        verb = "have" if len(snapshot.gone) > 1 else "has"
        others = f"; {describe_ranks(snapshot.gone)} {verb} exited"
        return [
            replace(roots.explain_single_rank(state, snapshot.source, others), confidence=0.6)
            for state in stuck
        ]
    outliers = _outliers(stuck)
    level, confidence = (Level.ERROR, 0.5) if outliers else (Level.WARNING, 0.4)
    ranks = {state.rank for state in outliers or stuck}
    return [
        replace(finding, level=level, confidence=confidence)
        for finding in findings
        if finding.subject.rank in ranks
    ]


def _outliers(stuck: Sequence[RankState]) -> list[RankState]:
    """Return the minority if a clear majority of ranks is at one line."""
    lines: dict[object, list[RankState]] = defaultdict(list)
    for state in stuck:
        lines[innermost_user_frame(state.stacks[-1]) if state.stacks else None].append(state)
    most = max(lines.values(), key=len, default=[])
    if not 2 * len(most) > len(stuck) > len(most):
        return []
    return [state for state in stuck if state not in most]


# ---- the rest of the verdict -------------------------------------------------------------------


def _consequences(snapshot: JobSnapshot, root: Finding) -> Iterable[Finding]:
    for wait, ranks in _ranks_by_wait(snapshot).items():
        others = [rank for rank in ranks if rank != root.subject.rank]
        if others:
            yield make_finding(
                by_name(root.cause),
                _describe_wait(others, wait),
                level=Level.NOTE,
                subject=_subject(snapshot, others[0], wait),
                evidence=_facts(snapshot, others[:1]),
                remedies=root.remedies[:1],
            )


def _ruled_out(snapshot: JobSnapshot, root: Finding | None) -> Iterable[RuledOut]:
    alive = [state for state in snapshot.ranks.values() if state.life != ProcessState.DEAD]
    if not snapshot.gone and len(alive) == snapshot.world_size:
        yield RuledOut(RANK_KILLED.name, f"all {len(alive)} processes are alive")
    if alive and all(
        state.life not in (ProcessState.STOPPED, ProcessState.UNKNOWN) for state in alive
    ):
        yield RuledOut(RANK_STOPPED.name, "no process is stopped")
    if root is None or root.cause != RANK_MISSING_COLLECTIVE.name:
        by_reason: dict[str, list[int]] = defaultdict(list)
        for rank, why in snapshot.advancing.items():
            by_reason[why].append(rank)
        for why, ranks in sorted(by_reason.items())[:_MAX_REASONS]:
            yield RuledOut(RANK_MISSING_COLLECTIVE.name, f"{describe_ranks(ranks)}: {why}")


def _unseen(snapshot: JobSnapshot) -> Iterable[str]:
    if snapshot.absent:
        yield f"{describe_ranks(snapshot.absent)}: not on the inspected hosts"
    by_text: dict[str, list[int]] = defaultdict(list)
    for state in snapshot.ranks.values():
        for text in state.unseen:
            by_text[text].append(state.rank)
    for text, ranks in sorted(by_text.items()):
        yield f"{describe_ranks(ranks)}: {text}"
    if snapshot.waits:
        yield (
            "which collective of which group each rank is in: "
            "stacks have no sequence numbers (`holdfast run` records them)"
        )


def _ranks_by_wait(snapshot: JobSnapshot) -> dict[StackWait, list[int]]:
    groups: dict[StackWait, list[int]] = defaultdict(list)
    for rank, wait in sorted(snapshot.waits.items()):
        groups[wait].append(rank)
    return groups


def _usual_wait(snapshot: JobSnapshot) -> StackWait:
    return max(_ranks_by_wait(snapshot).items(), key=lambda group: len(group[1]))[0]


def _describe_wait(ranks: Collection[int], wait: StackWait) -> str:
    return f"{describe_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} blocked in {wait}"


def _as_call(wait: StackWait) -> RecordedCall:
    return RecordedCall(group="", sequence=1, name=wait.call, site=wait.site)


def _subject(snapshot: JobSnapshot, rank: int, wait: StackWait) -> Subject:
    host, site = snapshot.ranks[rank].host or None, wait.site
    return Subject(
        rank=rank, host=host, file=site.file if site else None, line=site.line if site else None
    )


def _facts(snapshot: JobSnapshot, ranks: Iterable[int]) -> tuple[Fact, ...]:
    return tuple(_fact(snapshot, rank) for rank in sorted(set(ranks))[:_MAX_FACTS])


def _fact(snapshot: JobSnapshot, rank: int) -> Fact:
    state = snapshot.ranks[rank]
    stack = state.stacks[-1]
    text = f"in {snapshot.waits[rank]}"
    if len(state.stacks) > 1 and stall.same_stack(state.stacks[-2], stack):
        text += ", the same in two samples"
    if state.cpu_share is not None:
        text += f", {state.cpu_share:.0%} of a core"
    return Fact(
        text=text, origin=stack.origin, rank=rank, host=state.host or None, time=stack.time or None
    )

"""From the table of ranks to the verdict: who is the root, what followed from it, what was ruled out, what is unseen.

One judgement serves the live watcher, box files and dumps. It asks, in this order: did a rank die, did the ranks part
(a mismatch explains everything after it), do they wait in a circle, does a send or receive lack its partner, who is
waited for without waiting; and, where nobody waits at all, who is still there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.facts.ranks import Group, Life, Operation, RankState
from holdfast.findings import Cause, Fact, Finding, Level, RuledOut, Subject, Verdict, finding
from holdfast.report.ranksets import compress_ranks as ranks_text
from holdfast.rules import build_locks, divergence, mismatch, roots, waits
from holdfast.rules.causes import by_name
from holdfast.rules.places import Source
from holdfast.rules.waits import STORE_CALLS, Wait, WaitGraph

QUESTION = "Why does the job stand still?"
QUESTION_DEAD = "Why did the job die?"


@dataclass(frozen=True)
class Case:
    """What is judged: the table, the groups, the source around the places that matter, and what derives from them."""

    ranks: Mapping[int, RankState]
    groups: Mapping[str, Group]
    world_size: int
    source: Source
    graph: WaitGraph
    parted: divergence.Divergence | None


def judge(
    ranks: Sequence[RankState], groups: Mapping[str, Group], *, world_size: int, source: Source | None = None
) -> Verdict:
    """The verdict over a job that stands still, or of which a rank died. ``root`` is None where neither shows."""
    case = Case(
        {state.rank: state for state in ranks}, groups, world_size, source or {},
        waits.build(ranks, groups, world_size), divergence.find(ranks),
    )  # fmt: skip
    found = [
        item
        for rule in (_died, _locked, _parted, _new_group, _frozen, circle, _no_partner, _roots, transport)
        for item in rule(case)
    ] or _alone(case)
    dead = any(roots.died(state) for state in ranks)
    root = found[0] if found else None
    return Verdict(
        question=QUESTION_DEAD if dead else QUESTION,
        root=root,
        consequences=consequences(case, root) if root else (),
        suspects=tuple(found[1:4]),
        ruled_out=_ruled_out(case, root) if root else (),
        unseen=_unseen(case),
    )


# ---- the rules, in the order in which they are believed


def _locked(case: Case) -> list[Finding]:
    return [] if any(roots.died(state) for state in case.ranks.values()) else build_locks.stale(case.ranks.values())


def _died(case: Case) -> list[Finding]:
    dead = [state for state in case.ranks.values() if roots.died(state)]
    dead.sort(key=lambda state: (roots.severity(state), state.ended.time if state.ended else 0.0))
    if not dead or (case.parted and all(roots.is_echo(state) or state.exit_code == -6 for state in dead)):
        return []  # they died of the mismatch (gloo aborts on it) or of each other
    own = [state for state in dead if not roots.is_echo(state)]
    if not own:  # every death is an echo: somebody who left quietly, or is still there, is the root
        left = [state for state in case.ranks.values() if state.life == Life.DEAD and not roots.died(state)]
        found = [roots.explain(state, case.source, _failed_text(case, dead)) for state in left]
        return found or _vanished(case, dead)
    if len(own) == case.world_size > 1 and len({state.raised.type for state in own if state.raised}) == 1:
        return [mismatch.all_ranks(own)]
    missed = len(own) < len(dead)  # others lost their connection to it
    return [
        roots.explain(state, case.source, _waited_text(case, state.rank))
        if missed or case.graph.waiting_for(state.rank)
        else roots.explain(state, case.source, "")
        for state in own
    ]


def _vanished(case: Case, lost: Sequence[RankState]) -> list[Finding]:
    """Those of whom nothing tells how they ended, where ``lost`` are ranks that lost a peer in a call.

    Who did not come to that call was gone before; where all came, nothing tells which of several went first.
    """
    silent = [state for state in case.ranks.values() if roots.is_untold(state)]
    call = _failed(lost)
    behind = [state for state in silent if call is not None and _entered(state, call.group) < call.sequence]
    gone, text = behind or silent, _failed_text(case, lost)
    if all(roots.timed_out(state) for state in lost):
        return [roots.explain(state, case.source, text) for state in behind]
    if unheard := [rank for rank in range(case.world_size) if rank not in case.ranks and not silent]:
        message = f"nothing is heard of ranks {ranks_text(unheard)}, and others lost their connection in {text}"
        told = [(state.rank, state.raised) for state in lost if state.raised is not None]
        facts = tuple(
            Fact(text=f"{raised.type}: {raised.text}", origin=f"box of rank {rank}", rank=rank)
            for rank, raised in told[:4]
        )
        subject = Subject(rank=unheard[0])
        return [finding(by_name("peer-lost"), message, subject=subject, evidence=facts, confidence=0.7)]
    claims = [roots.vanished(state, text) for state in gone]
    if behind or len(gone) == 1:
        return claims
    return [replace(claim, level=Level.UNKNOWN, confidence=0.3) for claim in claims]


def _entered(state: RankState, group: str) -> int:
    return state.groups[group].entered if group in state.groups else 0


def _failed(dead: Sequence[RankState]) -> Operation | None:
    """The call in which those who lost their peer were."""
    calls = [call for state in dead for call in (*state.recent, *state.pending)]
    return next((call for call in reversed(calls) if call.failed or call.completed is None), None)


def _failed_text(case: Case, dead: Sequence[RankState]) -> str:
    call = _failed(dead)
    return call_text(call, case.groups) if call is not None else "a collective"


def _parted(case: Case) -> list[Finding]:
    """A mismatch, or a wait for a rank that has left, is explained by the first call made from another line."""
    waited = [case.ranks[rank] for rank in case.graph.roots if rank in case.ranks]
    left = bool(waited) and all(state.life == Life.DEAD or state.ended is not None for state in waited)
    parted = case.parted
    if parted is not None or left:
        line = divergence.find_line(list(case.ranks.values()))
        if line is not None and (parted is None or line.usual.entered <= parted.usual.entered):
            explained = mismatch.explain_line(line, case.ranks, case.source)
            if explained is not None:
                return [explained]
    return [] if parted is None else [mismatch.explain(parted, case.ranks, case.source)]


def _new_group(case: Case) -> list[Finding]:
    for wait in case.graph.waits:
        absent = [case.ranks[rank] for rank in wait.awaited if rank in case.ranks]
        if wait.operation.group.startswith("new_group") and any(state.pending or state.ended for state in absent):
            return [mismatch.new_group(wait, case.ranks, case.source)]
    return []


def _frozen(case: Case) -> list[Finding]:
    """Ranks that were stopped inside a call to which everybody came: that call waits for nobody else."""
    inside = {rank: wait.operation for wait in case.graph.waits if not wait.awaited for rank in wait.waiters}
    return [
        roots.explain(case.ranks[rank], case.source, call_text(call, case.groups))
        for rank, call in sorted(inside.items())
        if case.ranks[rank].life == Life.STOPPED
    ]


def circle(case: Case) -> list[Finding]:
    """The ranks that wait for each other in a circle."""
    cycle = case.graph.cycle
    if not cycle:
        return []
    calls = [
        f"rank {rank} in {call_text(wait.operation, case.groups)}{line_text(wait.operation)}" for rank, wait in cycle
    ]
    peers = [(rank, wait) for rank, wait in cycle if wait.operation.is_point_to_point]
    facts = tuple(_call_fact(case, rank, wait.operation) for rank, wait in cycle)
    if peers:
        rank, wait = peers[0]
        return [_without_partner(case, wait, rank, facts)]
    # Most ranks are on one side of the circle; a rank on the other side is the one that turned the order round.
    first, wait = min(cycle, key=lambda edge: len(edge[1].waiters))
    message = f"ranks {ranks_text([rank for rank, _ in cycle])} wait in a circle: " + ", ".join(calls[:6])
    subject = subject_of(case, first, wait.operation)
    return [finding(by_name("collective-order-inversion"), message, subject=subject, evidence=facts, confidence=0.95)]


def _no_partner(case: Case) -> list[Finding]:
    found = []
    for wait in case.graph.waits:
        if not wait.operation.is_point_to_point or not wait.awaited:
            continue
        peer = case.ranks.get(wait.awaited[0])
        if peer is not None and peer.life == Life.DEAD and not roots.died(peer):
            facts = (_call_fact(case, wait.waiters[0], wait.operation),)
            found.append(_without_partner(case, wait, wait.waiters[0], facts))
    return found


def _without_partner(case: Case, wait: Wait, rank: int, facts: tuple[Fact, ...]) -> Finding:
    call = wait.operation
    other = "recv" if call.name == "send" else "send"
    message = f"rank {call.peer} never posts the {other} for rank {rank}'s {call.name}{line_text(call)}"
    return finding(
        by_name("p2p-without-partner"), message, subject=subject_of(case, rank, call), evidence=facts, confidence=0.9
    )


def _roots(case: Case) -> list[Finding]:
    states = [case.ranks[rank] for rank in case.graph.roots if rank in case.ranks]
    states.sort(key=lambda state: (roots.severity(state), -len(case.graph.waiting_for(state.rank)), state.rank))
    found = [roots.explain(state, case.source, _waited_text(case, state.rank)) for state in states]
    for rank in case.graph.roots:
        if rank not in case.ranks:
            text = f"rank {rank} never entered {_waited_text(case, rank)}, and nothing is known of it"
            found.append(finding(by_name("peer-lost"), text, subject=Subject(rank=rank), confidence=0.5))
    return found


def transport(case: Case) -> list[Finding]:
    """Everybody is in the same call and it does not complete: the network, or the device, stands still."""
    stuck = [wait for wait in case.graph.waits if not wait.awaited and not wait.operation.is_point_to_point]
    if not stuck:
        return []
    call, waiters = stuck[0].operation, stuck[0].waiters
    left = len(waiters) < len(waits.members_of(call.group, case.groups, case.world_size) or waiters)
    who = f"ranks {ranks_text(waiters)} are still in" if left else "all ranks are in the same"
    others = ", which the others have left" if left else " and it does not complete"
    message = f"{who} {call_text(call, case.groups)}{line_text(call)}{others}: look at the network"
    facts = tuple(_call_fact(case, rank, call) for rank in waiters[:4])
    return [finding(by_name("network-fabric-fault"), message, evidence=facts, confidence=0.4)]


def _alone(case: Case) -> list[Finding]:
    """Nobody waits in a collective and nobody advances: each rank that is still there stands by itself."""
    states = list(case.ranks.values())
    if any(state.pending for state in states):
        return []
    there = [state for state in states if state.life != Life.DEAD]  # one that is gone may have left a stack
    still = [state for state in there if state.stacks or state.life in (Life.STOPPED, Life.DISK)]
    still.sort(key=lambda state: (roots.severity(state), state.rank))
    ended = [state.rank for state in states if state.life == Life.DEAD]
    others = f"; ranks {ranks_text(ended)} have ended" if ended else ""
    return [roots.explain_alone(state, case.source, others) for state in still]


# ---- what surrounds the root


def consequences(case: Case, root: Finding) -> tuple[Finding, ...]:
    """What followed from the root: who waits where, and who failed after it."""
    cause = by_name(root.cause)
    found = [_waiting(case, cause, wait, root) for wait in case.graph.waits[:64]]
    echoes = [state for state in case.ranks.values() if roots.died(state) and state.rank != root.subject.rank]
    for state in echoes[:16]:
        said = f"exit status {state.exit_code}"
        if state.raised and state.raised.text:
            said = f"{state.raised.type}: {state.raised.text.splitlines()[0][:120]}"
        message = f"rank {state.rank} then failed: {said}"
        subject = Subject(rank=state.rank, host=state.host or None)
        found.append(finding(cause, message, level=Level.NOTE, subject=subject, remedies=root.remedies[:1]))
    return tuple(item for item in found if item is not None)


def _waiting(case: Case, cause: Cause, wait: Wait, root: Finding) -> Finding | None:
    waiters = [rank for rank in wait.waiters if rank != root.subject.rank]
    if not waiters:
        return None
    many = "ranks" if len(waiters) > 1 else "rank"
    verb = "wait" if len(waiters) > 1 else "waits"
    target = f" for rank{'s' if len(wait.awaited) > 1 else ''} {ranks_text(wait.awaited)}" if wait.awaited else ""
    where = f"{call_text(wait.operation, case.groups)}{line_text(wait.operation)}"
    text = f"{many} {ranks_text(waiters)} {verb} in {where}{target}"
    subject = subject_of(case, waiters[0], wait.operation)
    facts = (_call_fact(case, waiters[0], wait.operation),)
    return finding(cause, text, level=Level.NOTE, subject=subject, evidence=facts, remedies=root.remedies[:1])


def _ruled_out(case: Case, root: Finding) -> tuple[RuledOut, ...]:
    states = list(case.ranks.values())
    found = []
    if all(state.life not in (Life.DEAD, Life.UNKNOWN) for state in states) and len(states) == case.world_size:
        found.append(RuledOut("rank-killed", f"all {len(states)} processes are alive"))
    if states and all(state.life not in (Life.STOPPED, Life.UNKNOWN) for state in states):
        found.append(RuledOut("rank-stopped", "no process is stopped"))
    compared = sum(bool(state.recent) for state in states)
    if case.parted is None and compared > 1:
        found.append(
            RuledOut(
                "collective-mismatch", f"the calls that {compared} ranks remember agree in operation, dtype and size"
            )
        )
    if not case.graph.cycle and case.graph.waits:
        found.append(RuledOut("collective-order-inversion", "the chains of waiting end; there is no circle"))
    subject = case.ranks.get(root.subject.rank) if root.subject.rank is not None else None
    if subject is not None and len(subject.stacks) > 1 and subject.cpu_share is not None and subject.cpu_share < 0.3:
        found.append(
            RuledOut(
                "straggler", f"two stacks of rank {subject.rank} agree and it used {subject.cpu_share:.0%} of a core"
            )
        )
    if not any(state.out_of_memory for state in states):
        found.append(RuledOut("host-oom-killed", "no memory cgroup of these ranks counts an out-of-memory kill"))
    return tuple(item for item in found if item.cause != root.cause)


def _unseen(case: Case) -> tuple[str, ...]:
    found: dict[str, list[int]] = defaultdict(list)
    for state in case.ranks.values():
        for text in state.unseen:
            found[text].append(state.rank)
    missing = [rank for rank in range(case.world_size) if rank not in case.ranks]
    if missing:
        found["no box and no summary"] = missing
    return tuple(f"ranks {ranks_text(ranks)}: {text}" for text, ranks in sorted(found.items()))


# ---- words


def call_text(call: Operation, groups: Mapping[str, Group]) -> str:
    """A call in words: ``all_reduce #31``, with the group where it is not the default one."""
    if call.group == "checkpoint":
        return f"the saving or loading of a checkpoint (agreement #{call.sequence} in the job's store)"
    if call.group in STORE_CALLS or call.group.startswith("new_group"):
        return f"{call.name} (the rendezvous store)"
    peer = f" {'to' if call.name == 'send' else 'from'} rank {call.peer}" if call.is_point_to_point else ""
    return f"{call.name}{peer} #{call.sequence}{_group_text(groups.get(call.group), call.group)}"


def _group_text(group: Group | None, name: str) -> str:
    described = group.description if group is not None else ""
    if described == "default_pg":
        return ""
    return f" of group {name!r}" + ("" if described in ("", "undefined") else f" ({described})")


def _waited_text(case: Case, rank: int) -> str:
    waiting = case.graph.waiting_for(rank)
    return call_text(waiting[0].operation, case.groups) if waiting else "the collective of the others"


def line_text(call: Operation) -> str:
    """Where the call stands in the source, in words; nothing where that is not known."""
    return f" at {call.site.file.rsplit('/', 1)[-1]}:{call.site.line}" if call.site else ""


def subject_of(case: Case, rank: int, call: Operation) -> Subject:
    """The rank, with the line at which it is in a call of that group."""
    state = case.ranks.get(rank)
    mine = next((mine for mine in (state.pending if state else ()) if mine.group == call.group), call)
    site = mine.site
    host = (state.host if state else None) or None
    return Subject(rank=rank, host=host, file=site.file if site else None, line=site.line if site else None)


def _call_fact(case: Case, rank: int, call: Operation) -> Fact:
    state = case.ranks.get(rank)
    what = f"{call_text(call, case.groups)}, {call.dtype} {list(call.shape)}{line_text(call)}"
    text = f"in {what}, entered and not completed"
    return Fact(
        text=text,
        origin=f"box of rank {rank}",
        rank=rank,
        host=(state.host if state else None) or None,
        time=call.entered,
    )

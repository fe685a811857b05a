"""Who keeps a job waiting, told from stacks alone: samples some seconds apart, without any record of collectives.

Some wait in a collective; whoever is elsewhere, and does not advance from one sample to the other, is what they wait
for. Stacks say less than boxes do (not which all_reduce it is, nor of which group), and the confidence says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from holdfast.facts.ranks import Life, Operation, RankState, Stack
from holdfast.facts.user_code import innermost_user
from holdfast.findings import Fact, Finding, Level, RuledOut, Subject, Verdict, finding
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import duration
from holdfast.rules import build_locks, roots, stall
from holdfast.rules.causes import by_name
from holdfast.rules.places import Source, rank_guard
from holdfast.rules.stack_scene import Scene, compose, still_s
from holdfast.rules.stack_waits import Kind, Wait

QUESTION = "Why does the job stand still?"


def judge(
    ranks: Sequence[RankState],
    threads: Mapping[int, Sequence[Stack]],
    *,
    world_size: int,
    source: Source | None = None,
    gone: Sequence[int] = (),
    running: Collection[int] = (),
) -> Verdict:
    """The verdict over a job of which nothing but stacks and processes is known.

    ``running`` are ranks whose main thread the system ran whenever it was looked at.
    """
    scene = compose(ranks, threads, world_size, source or {}, gone, running)
    found = _found(scene)
    root = found[0] if found else None
    return Verdict(
        question=QUESTION,
        root=root,
        consequences=tuple(_waiting(scene, root)) if root is not None else (),
        suspects=tuple(found[1:4]),
        ruled_out=tuple(_ruled_out(scene, root)),
        unseen=tuple(_unseen(scene)),
    )


# ---- the rules, in the order in which they are believed


def _found(scene: Scene) -> list[Finding]:
    locked = build_locks.stale(scene.ranks.values())
    if locked:
        return locked
    if not scene.stopped and _advances(scene):
        return []
    if scene.stopped or (scene.waits and scene.elsewhere):
        return [_explained(scene, state) for state in scene.elsewhere]
    if not scene.waits:
        return _alone(scene)
    if scene.gone:
        return [_gone(scene)]
    in_view = not scene.absent and len(scene.sampled) == len(scene.ranks)
    return _together(scene) if in_view else [_not_here(scene)]


def _advances(scene: Scene) -> bool:
    """True where one that waits came there a moment ago, or where those who wait do so for one that is at work."""
    arrived = any(rank in scene.alive for rank in scene.waits)
    return arrived or bool(scene.waits and scene.alive and not scene.elsewhere)


def _explained(scene: Scene, state: RankState) -> Finding:
    """The finding about a rank that is elsewhere; what the others wait in is said as far as it is known."""
    if not scene.waits:
        claim = roots.explain_alone(state, scene.source, "")
    else:
        claim = roots.explain(state, scene.source, str(_usual(scene)))
    certain = state.life in (Life.STOPPED, Life.DISK) or any(not child.alive for child in state.children)
    if certain:
        return claim
    since = f", for at least {duration(still)}" if (still := still_s(state)) >= 1 else ""
    return replace(claim, message=claim.message + since, confidence=round(claim.confidence * scene.trust, 2))


def _gone(scene: Scene) -> Finding:
    many = len(scene.gone) > 1
    verb = "have no process" if many else "has no process"
    message = f"{say_ranks(scene.gone)} {verb} any more, and the others wait in {_usual(scene)}"
    return finding(by_name("peer-lost"), message, subject=Subject(rank=scene.gone[0]), confidence=0.7)


def _not_here(scene: Scene) -> Finding:
    """All in view wait; who is waited for is not in view."""
    unread = [rank for rank, state in scene.ranks.items() if not state.stacks]
    missing = say_ranks((*scene.absent, *unread))
    message = (
        f"{say_ranks(scene.waits)} wait in {_usual(scene)}; what they wait for is not among them: look at {missing}"
    )
    cause = by_name("rank-missing-collective")
    return finding(cause, message, level=Level.UNKNOWN, evidence=_facts(scene, scene.waits), confidence=0.3)


def _together(scene: Scene) -> list[Finding]:
    """Everybody waits: in one call, so that the transport is left, or in different ones, so that they parted."""
    groups = _groups(scene)
    if len(groups) > 1:
        return _parted(scene, groups)
    if any((state.cpu_share or 0.0) >= roots.IDLE_CPU_SHARE for state in scene.ranks.values()):
        return []  # somebody works in there
    wait = next(iter(groups))
    name = "store-wait" if wait.kind == Kind.STORE else "network-fabric-fault"
    ask = "look at the store" if wait.kind == Kind.STORE else "look at the network and the devices"
    message = f"all {len(scene.ranks)} ranks are in {wait} and it does not complete: {ask}"
    return [finding(by_name(name), message, evidence=_facts(scene, scene.waits), confidence=0.35)]


def _parted(scene: Scene, groups: Mapping[Wait, Sequence[int]]) -> list[Finding]:
    """Ranks stand in different calls: the fewer are suspected, or those whose call stands under a test of the rank."""
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), group[1][0]))
    (odd, few), (usual, most) = ordered[0], ordered[-1]
    facts = _facts(scene, (*few[:2], *most[:2]))
    message = f"{_in(few, odd)}, {_in(most, usual)}: they have parted"
    if odd.kind == Kind.POINT_TO_POINT and usual.kind == Kind.COLLECTIVE:
        message = f"{_in(few, odd)}, and nobody is in the other side of it: {_in(most, usual)}"
        return [_claim(scene, "p2p-without-partner", message, few[0], odd, facts, 0.6)]
    if any(wait.kind != Kind.COLLECTIVE for wait in groups):
        claim = _claim(scene, "collective-mismatch", message, few[0], odd, facts, 0.2)
        return [replace(claim, level=Level.UNKNOWN)]
    guarded = rank_guard(_call(odd), _call(usual), scene.source)
    if guarded is not None and rank_guard(_call(usual), _call(odd), scene.source) is not None:
        message = (
            f"{_in(few, odd)}, {_in(most, usual)}: the two branches of a test of the rank in line {guarded[0].line}"
        )
        return [_claim(scene, "collective-order-inversion", message, few[0], odd, facts, 0.5)]
    tie = len(few) == len(most)
    if guarded is None and tie:
        guarded = rank_guard(_call(usual), _call(odd), scene.source)
        odd, few = (usual, most) if guarded is not None else (odd, few)
    if guarded is not None:
        message = (
            f"{say_ranks(few)} alone can enter {odd}: it stands under a test of the rank in line {guarded[0].line}"
        )
        return [_claim(scene, "rank-guarded-collective", message, few[0], odd, facts, 0.7)]
    message += " (a tie: neither side is in the minority)" if tie else ""
    return [_claim(scene, "collective-mismatch", message, few[0], odd, facts, 0.25 if tie else 0.45)]


def _in(ranks: Sequence[int], wait: Wait) -> str:
    return f"{say_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} in {wait}"


def _claim(
    scene: Scene, cause: str, message: str, rank: int, wait: Wait, facts: tuple[Fact, ...], confidence: float
) -> Finding:
    subject = _subject(scene, rank, wait)
    return finding(by_name(cause), message, subject=subject, evidence=facts, confidence=confidence)


def _alone(scene: Scene) -> list[Finding]:
    """Nobody waits for others. Who does not advance is named where a file, a device or a worker explains it.

    Beyond that, ranks that stand apart from the rest, or all alike, are worth a warning: they may just sleep.
    """
    still = scene.elsewhere
    explained = [_explained(scene, state) for state in still]
    certain = [claim for claim in explained if claim.cause != "stalled-outside-collectives"]
    if certain or len(still) < len(scene.ranks):
        return certain
    if scene.gone and len(still) < scene.world_size:
        others = f"; {say_ranks(scene.gone)} {'have' if len(scene.gone) > 1 else 'has'} ended"
        return [replace(roots.explain_alone(state, scene.source, others), confidence=0.6) for state in still]
    apart = _apart(still)
    level, confidence = (Level.ERROR, 0.5) if apart else (Level.WARNING, 0.4)
    wanted = {state.rank for state in apart or still}
    return [replace(claim, level=level, confidence=confidence) for claim in explained if claim.subject.rank in wanted]


def _apart(still: Sequence[RankState]) -> list[RankState]:
    """The minority, where a clear majority of ranks stands at one and the same line."""
    places: dict[object, list[RankState]] = defaultdict(list)
    for state in still:
        places[innermost_user(state.stacks[-1]) if state.stacks else None].append(state)
    most = max(places.values(), key=len, default=[])
    return [state for state in still if state not in most] if 2 * len(most) > len(still) > len(most) else []


# ---- what surrounds the root


def _waiting(scene: Scene, root: Finding) -> Iterable[Finding]:
    for wait, ranks in _groups(scene).items():
        others = [rank for rank in ranks if rank != root.subject.rank]
        if others:
            message = _in(others, wait)
            subject, facts = _subject(scene, others[0], wait), _facts(scene, others[:1])
            yield finding(by_name(root.cause), message, level=Level.NOTE, subject=subject, evidence=facts,
                          remedies=root.remedies[:1])  # fmt: skip


def _ruled_out(scene: Scene, root: Finding | None) -> Iterable[RuledOut]:
    cause = root.cause if root is not None else ""
    alive = [state for state in scene.ranks.values() if state.life != Life.DEAD]
    if not scene.gone and len(alive) == scene.world_size:
        yield RuledOut("rank-killed", f"all {len(alive)} processes are alive")
    if alive and all(state.life not in (Life.STOPPED, Life.UNKNOWN) for state in alive):
        yield RuledOut("rank-stopped", "no process is stopped")
    if cause != "rank-missing-collective":
        by_reason: dict[str, list[int]] = defaultdict(list)
        for rank, why in scene.alive.items():
            by_reason[why].append(rank)
        for why, ranks in sorted(by_reason.items())[:8]:
            yield RuledOut("rank-missing-collective", f"{say_ranks(ranks)}: {why}")


def _unseen(scene: Scene) -> Iterable[str]:
    if scene.absent:
        yield f"{say_ranks(scene.absent)}: not on the hosts that were looked at"
    found: dict[str, list[int]] = defaultdict(list)
    for state in scene.ranks.values():
        for text in state.unseen:
            found[text].append(state.rank)
    for text, ranks in sorted(found.items()):
        yield f"{say_ranks(ranks)}: {text}"
    if scene.waits:
        yield "which collective of which group each rank is in: stacks do not number them, as `holdfast run` does"


def _groups(scene: Scene) -> dict[Wait, list[int]]:
    groups: dict[Wait, list[int]] = defaultdict(list)
    for rank, wait in sorted(scene.waits.items()):
        groups[wait].append(rank)
    return groups


def _usual(scene: Scene) -> Wait:
    return max(_groups(scene).items(), key=lambda group: len(group[1]))[0]


def _call(wait: Wait) -> Operation:
    return Operation(group="", sequence=1, name=wait.call, site=wait.place)


def _subject(scene: Scene, rank: int, wait: Wait) -> Subject:
    host, place = scene.ranks[rank].host or None, wait.place
    return Subject(rank=rank, host=host, file=place.file if place else None, line=place.line if place else None)


def _facts(scene: Scene, ranks: Iterable[int]) -> tuple[Fact, ...]:
    return tuple(_fact(scene, rank) for rank in sorted(set(ranks))[:4])


def _fact(scene: Scene, rank: int) -> Fact:
    state = scene.ranks[rank]
    share = f", {state.cpu_share:.0%} of a core" if state.cpu_share is not None else ""
    same = len(state.stacks) > 1 and stall.same_stack(state.stacks[-2], state.stacks[-1])
    text = f"in {scene.waits[rank]}" + (", the same in two samples" if same else "") + share
    stack = state.stacks[-1]
    return Fact(text=text, origin=stack.origin, rank=rank, host=state.host or None, time=stack.time or None)

"""From the table of flight-recorder dumps to the verdict, over the same wait-for graph as that of a live job.

Dumps are taken one after the other and are no picture of one moment: before anybody is said to wait, calls are taken
away that a peer's dump proves to be over, and sends and receives are set against each other. Then it is asked who
parted from the others, who waits in a circle, who is waited for without waiting, and whose device no longer reports
what its peers have completed. Where all are in the same call nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.facts.dumps import DumpTable
from holdfast.facts.ranks import Operation, Place
from holdfast.findings import Fact, Finding, Level, RuledOut, Subject, Verdict, finding
from holdfast.report.ranksets import compress_ranks as ranks_text
from holdfast.rules import dump_picture, hang, mismatch, recorded_calls, waits
from holdfast.rules.causes import by_name
from holdfast.rules.dump_picture import Picture
from holdfast.rules.waits import Wait

QUESTION = "Why does the job stand still?"
#: Calls that all peers have completed and one rank's dump has open: fewer are a matter of when the dump was made.
SILENT_CALLS = 3
#: A call that all are in, and after whose beginning ranks went on for so long elsewhere, is not just under way.
STANDS_S = 30.0
#: Ranks that a verdict names one by one.
MOST_NAMED = 16


def judge(table: DumpTable) -> Verdict:
    """The verdict over these dumps; ``root`` is None where nothing is wrong in them."""
    picture = dump_picture.take(table)
    found = [item for rule in (_parted, _circle, _roots, _silent, _stuck) for item in rule(picture)]
    found = _once(found)
    root = found[0] if found else None
    verdict = Verdict(
        question=QUESTION,
        root=root,
        consequences=hang.consequences(picture.case, root) if root else (),
        suspects=tuple(found[1:MOST_NAMED]),
        ruled_out=_ruled_out(picture, root) if root else (),
        unseen=(*table.unseen, *_untold(picture, found[MOST_NAMED:])),
    )
    return _of_dumps(verdict, table.files)


def _once(found: Sequence[Finding]) -> list[Finding]:
    """The findings without those that say less of a rank that one before them is about."""
    kept: list[Finding] = []
    named: set[int | None] = set()
    for item in found:
        if item.subject.rank is None or item.subject.rank not in named:
            kept.append(item)
        named.add(item.subject.rank)
    return kept


# ---- the rules, in the order in which they are believed


def _parted(picture: Picture) -> list[Finding]:
    parted = picture.case.parted
    if parted is not None:
        found = mismatch.explain(parted, picture.case.ranks, {})
        if parted.tie:  # either side may be right: the line is shown, and no rank is accused
            found = msgspec.structs.replace(found, subject=msgspec.structs.replace(found.subject, rank=None))
        return [found]
    wrong = recorded_calls.malformed(picture.table)
    return [wrong] if wrong is not None else []


def _circle(picture: Picture) -> list[Finding]:
    return hang.circle(picture.case) if picture.case.parted is None else []


def _roots(picture: Picture) -> list[Finding]:
    """Ranks that others wait for and that wait for nobody; one without a dump comes last, as less is known of it."""
    case = picture.case
    if case.parted is not None or case.graph.cycle:
        return []
    held = dump_picture.held(picture)
    known = [rank for rank in case.graph.roots if rank in case.ranks and rank not in held]
    known.sort(key=lambda rank: (rank not in picture.settled.silent, -len(picture.awaited[rank]), rank))
    absent = [rank for rank in case.graph.roots if rank not in case.ranks]
    return [*(_behind(picture, rank) for rank in known), *(_without_dump(picture, rank) for rank in absent)]


def _silent(picture: Picture) -> list[Finding]:
    """Ranks that wait for others as well, but whose own device stopped reporting before that."""
    if not picture.case.graph.waits:
        return []
    return [_device(picture, rank, "") for rank, calls in picture.settled.silent.items() if len(calls) >= SILENT_CALLS]


def _stuck(picture: Picture) -> list[Finding]:
    """Everybody has entered, and it does not complete: no rank is to blame."""
    if picture.case.graph.waits or picture.case.parted is not None or not picture.stuck:
        return []
    case = _with_waits(picture.case, picture.stuck)
    found = hang.transport(case)
    calls = " and ".join(hang.call_text(wait.operation, case.groups) for wait in picture.stuck[:2])
    if any(case.groups[wait.operation.group].ranks is None for wait in picture.stuck):
        return [_who_is_missing(picture, calls)]
    if not found:
        return []
    message, level = found[0].message, Level.ERROR
    if len({wait.operation.group for wait in picture.stuck}) > 1:
        message = (
            f"every member has entered {calls}, in one order, and none completes: no rank is to blame; the network "
            "stands still, or the two communicators block each other on the device"
        )
    if picture.stood_s < STANDS_S:
        level = Level.UNKNOWN
        message += "; or the dumps were made while it was under way: nothing in them is later than its beginning"
    return [msgspec.structs.replace(found[0], message=message, level=level)]


def _who_is_missing(picture: Picture, calls: str) -> Finding:
    """Ranks stand in a call of a group whose members no dump tells."""
    wait = picture.stuck[0]
    who = "; ".join(
        f"ranks {ranks_text(wait.waiters)} in {_named(picture, wait.operation)}" for wait in picture.stuck[:4]
    )
    message = f"{calls} do not complete ({who}), and the dumps do not say whom that group waits for"
    cause = "collective-order-inversion" if len(picture.stuck) > 1 else "rank-missing-collective"
    if len(picture.stuck) > 1:
        message += ": ranks stand in different groups, which is how a circle looks"
    fact = Fact(
        text=f"in {_named(picture, wait.operation)}", origin=f"box of rank {wait.waiters[0]}", rank=wait.waiters[0]
    )
    return finding(by_name(cause), message, level=Level.UNKNOWN, evidence=(fact,), confidence=0.3)


def _with_waits(case: hang.Case, stuck: tuple[Wait, ...]) -> hang.Case:
    """The case with the waits in which nobody is missing."""
    return hang.Case(case.ranks, case.groups, case.world_size, case.source, waits.graph(stuck), case.parted)


# ---- one rank


def _behind(picture: Picture, rank: int) -> Finding:
    """A rank that did not enter what the others are in: slow where its dump is behind what they completed."""
    wait = picture.awaited[rank][0]
    text = hang.call_text(wait.operation, picture.case.groups) + hang.line_text(wait.operation)
    if len(picture.settled.silent.get(rank, ())) >= SILENT_CALLS:
        return _device(picture, rank, f"; it has not entered {text}")
    last = picture.last_call(rank)
    so_far = f": its last known call is {_named(picture, last)}" if last else _count(picture, rank, wait)
    lag = picture.settled.lag.get(rank)
    if lag is not None:
        group, own, others = lag
        message = (
            f"rank {rank} is {others - own + 1} calls behind in group {group!r}: the others have completed "
            f"#{others} and wait in {text}{so_far}"
        )
        return _claim(picture, "straggler", rank, message, last, wait, 0.6)
    message = f"rank {rank} never entered {text}{so_far}"
    return _claim(picture, "rank-missing-collective", rank, message, last, wait, 0.85)


def _count(picture: Picture, rank: int, wait: Wait) -> str:
    """How far a rank is of which no call is left in its dump."""
    group = wait.operation.group
    progress = picture.case.ranks[rank].groups.get(group)
    if progress is None or wait.operation.is_point_to_point:
        return "; no call of it is left in its dump"
    return f": its last call there is #{progress.entered}, and no call of it is open"


def _device(picture: Picture, rank: int, more: str) -> Finding:
    calls = picture.settled.silent[rank]
    first = calls[0]
    text = hang.call_text(first, picture.case.groups) + hang.line_text(first)
    message = (
        f"the device of rank {rank} stopped reporting at {text}: {len(calls)} calls that its peers have completed are "
        f"open in its dump{more}"
    )
    return _claim(picture, "gpu-hw-fault", rank, message, first, next(iter(picture.awaited.get(rank, ())), None), 0.6)


def _without_dump(picture: Picture, rank: int) -> Finding:
    wait = picture.awaited[rank][0]
    text = hang.call_text(wait.operation, picture.case.groups) + hang.line_text(wait.operation)
    message = f"rank {rank} left no dump, and the others wait for it in {text}: it died, or could not write one"
    return _claim(picture, "peer-lost", rank, message, None, wait, 0.6)


def _claim(
    picture: Picture, cause: str, rank: int, message: str, last: Operation | None, wait: Wait | None, confidence: float
) -> Finding:
    place: Place | None = last.site if last else None
    facts = []
    if last is not None:
        facts.append(Fact(text=f"last known call: {_named(picture, last)}", origin=f"box of rank {rank}", rank=rank))
    if wait is not None:
        waiter = wait.waiters[0]
        text = f"in {_named(picture, wait.operation)}, entered and not completed"
        facts.append(Fact(text=text, origin=f"box of rank {waiter}", rank=waiter, time=wait.operation.entered))
    subject = Subject(rank=rank, file=place.file if place else None, line=place.line if place else None)
    return finding(by_name(cause), message, subject=subject, evidence=tuple(facts), confidence=confidence)


def _named(picture: Picture, call: Operation) -> str:
    return hang.call_text(call, picture.case.groups) + hang.line_text(call)


# ---- what surrounds the root


def _ruled_out(picture: Picture, root: Finding) -> tuple[RuledOut, ...]:
    found = []
    if picture.case.parted is None and len(picture.table.ranks) > 1:
        why = f"the calls in the dumps of {len(picture.table.ranks)} ranks agree in operation, dtype and size"
        found.append(RuledOut("collective-mismatch", why))
    if not picture.case.graph.cycle and picture.case.graph.waits:
        found.append(RuledOut("collective-order-inversion", "the chains of waiting end; there is no circle"))
    return tuple(item for item in found if item.cause != root.cause)


def _untold(picture: Picture, left_out: Sequence[Finding]) -> list[str]:
    """What keeps the verdict from being sure, and whom it does not name."""
    found = []
    if left_out:
        ranks = sorted({item.subject.rank for item in left_out if item.subject.rank is not None})
        found.append(f"ranks {ranks_text(ranks)}: awaited as well, and not shown one by one")
    late = picture.settled.late
    if late:
        whose = "ranks" if len(late) > 1 else "rank"
        found.append(f"{whose} {ranks_text(sorted(late))}: calls that peers completed are still open in the dump")
    if picture.table.ranks and not any(call.site for call in picture.table.calls):
        found.append("the dumps have no stacks (JSON, or TORCH_INCLUDE_STACK_TRACE=0): no lines of source are known")
    return found


def _of_dumps(verdict: Verdict, files: Mapping[int, str]) -> Verdict:
    """The verdict with the names of the files that its facts were read from."""

    def renamed(item: Finding) -> Finding:
        facts = tuple(
            msgspec.structs.replace(fact, origin=_origin(fact, files)) for fact in item.evidence
        )  # fmt: skip
        return msgspec.structs.replace(item, evidence=facts)

    return msgspec.structs.replace(
        verdict,
        root=renamed(verdict.root) if verdict.root else None,
        consequences=tuple(map(renamed, verdict.consequences)),
        suspects=tuple(map(renamed, verdict.suspects)),
    )


def _origin(fact: Fact, files: Mapping[int, str]) -> str:
    if fact.rank is not None and fact.rank in files and fact.origin.startswith("box of"):
        return files[fact.rank]
    return fact.origin.replace("boxes of", "dumps of").replace("box of", "dump of")

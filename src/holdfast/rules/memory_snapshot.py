"""Why GPU memory ran out, by snapshots of it: what it was full of, at which lines, and what to change first.

Fragmentation is said where it is seen: no idle piece as large as the request, and all of them together larger. That
memory grows is said where blocks of several earlier steps are still held. Everything else is a workload that needs more
than there is, and what it is made of decides what helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from holdfast.facts.allocations import Use, is_users
from holdfast.facts.memory_snapshots import Asked, DeviceMemory, Snapshot
from holdfast.findings import Fact, Finding, Level, Remedy, RuledOut, Subject, Verdict, finding
from holdfast.report.evidence import size_text
from holdfast.report.text import plural
from holdfast.rules.causes import by_name
from holdfast.rules.shortage import FRAGMENTED, KEPT, LEAST_IDLE, RECORD, TOO_LARGE, expandable, of_use
from holdfast.rules.verdict import QUESTION

ALONE = "oom-on-one-rank-then-timeout"
#: Of what is held: tensors of earlier steps below this share are not why.
_LEAST_KEPT = 1 / 10
#: A rank that has reserved so many times what the others have is one for itself.
_ALONE = 1.25
_SITES = 4
#: Uses of which less than this share of what is held is there are not worth a change.
_LEAST_USE = 1 / 20


def judge(snapshots: Sequence[Snapshot]) -> Verdict:
    """The verdict over one process' snapshot, or several; the root is of the first in which a request failed."""
    every = [(shot, device) for shot in snapshots for device in shot.devices if device.reserved]
    failed = [one for one in every if one[1].asked]
    unseen = [text for shot in snapshots for text in _unseen(shot)]
    if not every:
        return Verdict(question=QUESTION, unseen=(*unseen, "the snapshot holds no memory of a GPU"))
    shot, device = failed[0] if failed else max(every, key=lambda one: one[1].reserved)
    others = [each.reserved for other, each in every if other is not shot and other.rank != shot.rank]
    root = _failed(shot, device, device.asked[-1], others) if failed else _merely(shot, device)
    return Verdict(question=QUESTION, root=root, ruled_out=tuple(_ruled_out(device, root)), unseen=tuple(unseen))


def _failed(shot: Snapshot, device: DeviceMemory, asked: Asked, others: Sequence[int]) -> Finding:
    """The finding where a request failed."""
    cause, confidence, clause = _cause(device, asked, others)
    who = f"rank {shot.rank}" if shot.rank is not None else f"the process of {shot.name}"
    free = f", {size_text(asked.free)} free" if asked.free is not None else ""
    message = f"{who} ran out of GPU memory: {size_text(asked.size)} asked for{_at(asked)}{free}, {clause}"
    return finding(
        by_name(cause), message, subject=_subject(shot, device, asked), evidence=tuple(_facts(shot, device)),
        remedies=tuple(_advice(device, asked, cause)), confidence=confidence,
    )  # fmt: skip


def _cause(device: DeviceMemory, asked: Asked, others: Sequence[int]) -> tuple[str, float, str]:
    kept = sum(each.bytes for each in device.kept)
    if kept > _LEAST_KEPT * device.held:
        return KEPT, 0.85, f"{size_text(kept)} of earlier steps still held"
    idle, room = device.idle, device.idle - device.whole + (asked.free or 0)
    if idle >= LEAST_IDLE * device.reserved and room >= asked.size > device.largest:
        piece = f"the largest piece {size_text(device.largest)}" if device.largest else "not in one piece"
        return FRAGMENTED, 0.9 if device.largest else 0.75, f"{size_text(idle)} idle, {piece}"
    if len(others) > 0 and device.reserved > _ALONE * median(others):
        more = size_text(device.reserved - median(others))
        return ALONE, 0.8, f"{more} more than the other ranks have reserved"
    most = next(iter(device.uses.items()), (Use.UNTOLD, 0))
    return TOO_LARGE, 0.85, f"{size_text(most[1])} of {size_text(device.held)} in tensors are {_NAMES[most[0]]}"


_NAMES = {
    **{use: str(use) for use in Use},
    Use.BACKWARD: "made by backward (gradients and their scratch)", Use.UNTOLD: "untold (no frame says for what)",
}  # fmt: skip


def _merely(shot: Snapshot, device: DeviceMemory) -> Finding:
    """No request failed: what is there is shown, and what is kept over steps is warned of."""
    kept = sum(each.bytes for each in device.kept)
    if kept > _LEAST_KEPT * device.held:
        cause, level, said = KEPT, Level.WARNING, f"{size_text(kept)} of earlier steps still held"
        remedies = by_name(KEPT).remedies
    else:
        cause, level, remedies = TOO_LARGE, Level.NOTE, tuple(_advice(device, None, TOO_LARGE))
        said = f"of {size_text(device.reserved)} reserved {size_text(device.held)} are held"
    message = f"no request failed in {shot.name}: {said}"
    return finding(
        by_name(cause), message, level=level, subject=_subject(shot, device, None),
        evidence=tuple(_facts(shot, device)), remedies=remedies, confidence=0.85,
    )  # fmt: skip


def _subject(shot: Snapshot, device: DeviceMemory, asked: Asked | None) -> Subject:
    """At the line that kept the most, where something is kept; else at that which asked."""
    kept = next((each.place for each in device.kept), None)
    place = kept or (asked.place if asked is not None else None)
    file, line = (place.file, place.line) if place is not None else (None, None)
    return Subject(rank=shot.rank, gpu=device.device, file=file, line=line)


def _at(asked: Asked) -> str:
    place = f" at {asked.place.file}:{asked.place.line}" if asked.place is not None else ""
    return place + (f" ({_NAMES[asked.use]})" if asked.use is not Use.UNTOLD else "")


def _facts(shot: Snapshot, device: DeviceMemory) -> Iterator[Fact]:
    """What the memory is made of, the lines that asked for most of it, and what is not in tensors."""
    origin = f"{shot.name}: segments of device {device.device}"
    parts = ", ".join(f"{size_text(nbytes)} {use}" for use, nbytes in device.uses.items())
    yield Fact(
        text=f"held at the failure: {parts}" if device.asked else f"held: {parts}", origin=origin, rank=shot.rank
    )
    waiting = f", {size_text(device.waiting)} wait for another stream" if device.waiting else ""
    piece = f" (the largest piece {size_text(device.largest)})" if device.largest else ""
    yield Fact(
        text=f"of {size_text(device.reserved)} reserved {size_text(device.idle)} are idle{piece}{waiting}",
        origin=origin, rank=shot.rank,
    )  # fmt: skip
    for kept in device.kept[:_SITES]:
        blocks = f"{size_text(kept.bytes)} in {plural(kept.blocks, 'block')} of {kept.steps} steps"
        text = f"{blocks}, made at {kept.place}, still held"
        yield Fact(text=text, origin=f"{shot.name}: events of device {device.device}", rank=shot.rank)
    sites = sorted(device.sites, key=lambda site: (not is_users(site.place), -site.bytes))
    for site in [site for site in sites if site.place is not None][:_SITES]:
        text = f"{size_text(site.bytes)} in {plural(site.blocks, 'block')} asked for at {site.place}: {site.use}"
        yield Fact(text=text, origin=origin, rank=shot.rank)


def _advice(device: DeviceMemory, asked: Asked | None, cause: str) -> Iterator[Remedy]:
    """What is the cause's own first; then changes of the largest uses, each with what it saves at most."""
    if cause == KEPT:  # how much there would be without what is kept is not known
        yield from by_name(KEPT).remedies
        return
    if cause == ALONE:
        yield from by_name(ALONE).remedies[:1]
    if cause == FRAGMENTED and not device.expandable:
        yield expandable(device.idle)
    uses = dict(device.uses)
    if Use.BACKWARD in uses:  # what to change is what forward keeps; how much of it backward made is not known
        uses.pop(Use.BACKWARD)
    said = set()
    for use, nbytes in uses.items():
        if use is Use.UNTOLD or nbytes < _LEAST_USE * device.held:
            continue
        for remedy in of_use(use, nbytes):
            said.add(remedy)
            yield remedy
    if asked is not None and asked.use not in (*uses, Use.UNTOLD):
        yield from of_use(asked.use, None)
    if not said:
        yield RECORD


def _ruled_out(device: DeviceMemory, root: Finding) -> Iterator[RuledOut]:
    if not device.asked or root.cause == FRAGMENTED or device.returned:
        return
    size = device.asked[-1].size
    if device.idle + (device.asked[-1].free or 0) < size:
        yield RuledOut(FRAGMENTED, f"all that is idle ({size_text(device.idle)}) would not hold the {size_text(size)}")


def _unseen(shot: Snapshot) -> Iterator[str]:
    if shot.dropped:
        yield f"{shot.name}: {shot.dropped} segments or blocks are not what torch writes; left out"
    for device in shot.devices:
        untold = device.uses.get(Use.UNTOLD, 0)
        if untold > device.held / 10:
            share = f"{size_text(untold)} of {size_text(device.held)}"
            yield (
                f"{shot.name}: {share} in tensors have no frames that tell what for: made by backward (which has none "
                "of Python), or before _record_memory_history"
            )
        if device.returned:
            yield (
                f"{shot.name}: {size_text(device.returned)} were free again when it was written; they are put back by "
                "its events, but how large the idle pieces were is not known"
            )

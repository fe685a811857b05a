"""Judge why GPU memory ran out by memory snapshots: what filled it, at which lines, what to change.

Fragmentation is reported if no idle block is as large as the request, but all of them together are.
Growth is reported if blocks of several earlier steps are still held. Otherwise the workload needs
more memory than the GPU has, and the largest purposes decide what helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from holdfast.causes import by_name
from holdfast.causes.memory.oom_on_one_rank_then_timeout import OOM_ON_ONE_RANK_THEN_TIMEOUT
from holdfast.core.findings import (
    Fact,
    Finding,
    Level,
    Remedy,
    RuledOut,
    Subject,
    Verdict,
    make_finding,
)
from holdfast.core.text import pluralize
from holdfast.diagnose.combined_verdict import QUESTION
from holdfast.diagnose.memory_snapshots import DeviceMemory, FailedRequest, MemorySnapshot
from holdfast.host.allocation_purpose import AllocationPurpose, is_user_frame
from holdfast.report.evidence_summary import size_text
from holdfast.watcher.rules.gpu_memory import (
    FRAGMENTED,
    KEPT,
    LEAST_IDLE,
    RECORD_SNAPSHOT,
    TOO_LARGE,
    suggest_expandable_segments,
    suggest_savings,
)

ONE_RANK = OOM_ON_ONE_RANK_THEN_TIMEOUT.name
#: Retained memory below this share of held memory is not the cause.
_MIN_RETAINED_SHARE = 1 / 10
#: A rank that has reserved this many times the median of the others is an outlier.
_OUTLIER_FACTOR = 1.25
_MAX_SITES = 4
#: No remedies are proposed for purposes below this share of held memory.
_MIN_PURPOSE_SHARE = 1 / 20
#: A larger share of held memory without a known purpose is reported.
_MAX_UNKNOWN_SHARE = 1 / 10
_PURPOSE_NAMES = {
    **{purpose: str(purpose) for purpose in AllocationPurpose},
    AllocationPurpose.BACKWARD: "allocated by backward (gradients and temporary buffers)",
    AllocationPurpose.UNKNOWN: "of unknown purpose (no frames)",
}


def judge(snapshots: Sequence[MemorySnapshot]) -> Verdict:
    """Return the verdict over the snapshots; the root is the first failed request if any."""
    unseen = [text for snapshot in snapshots for text in _unseen(snapshot)]
    devices = [
        (snapshot, device)
        for snapshot in snapshots
        for device in snapshot.devices
        if device.reserved
    ]
    if not devices:
        return Verdict(question=QUESTION, unseen=(*unseen, "the snapshot contains no GPU memory"))
    failed = [pair for pair in devices if pair[1].failed_requests]
    if failed:
        snapshot, device = failed[0]
        others = [
            other.reserved
            for other_snapshot, other in devices
            if other_snapshot is not snapshot and other_snapshot.rank != snapshot.rank
        ]
        root = _failure_finding(snapshot, device, device.failed_requests[-1], others)
    else:
        snapshot, device = max(devices, key=lambda pair: pair[1].reserved)
        root = _usage_finding(snapshot, device)
    return Verdict(
        question=QUESTION,
        root=root,
        ruled_out=tuple(_ruled_out(device, root)),
        unseen=tuple(unseen),
    )


def _failure_finding(
    snapshot: MemorySnapshot, device: DeviceMemory, request: FailedRequest, others: Sequence[int]
) -> Finding:
    cause, confidence, reason = _find_cause(device, request, others)
    owner = f"rank {snapshot.rank}" if snapshot.rank is not None else f"process of {snapshot.name}"
    origin = f" at {request.site.file}:{request.site.line}" if request.site is not None else ""
    if request.purpose is not AllocationPurpose.UNKNOWN:
        origin += f" ({_PURPOSE_NAMES[request.purpose]})"
    free = f", {size_text(request.free)} free" if request.free is not None else ""
    size = size_text(request.size)
    return make_finding(
        by_name(cause),
        f"{owner} ran out of GPU memory: {size} requested{origin}{free}, {reason}",
        subject=_subject(snapshot, device, request),
        evidence=tuple(_facts(snapshot, device)),
        remedies=tuple(_remedies(device, request, cause)),
        confidence=confidence,
    )


def _find_cause(
    device: DeviceMemory, request: FailedRequest, others: Sequence[int]
) -> tuple[str, float, str]:
    """Return cause, confidence and reason of a failed request."""
    if retained := _significant_retained(device):
        return KEPT, 0.85, f"{size_text(retained)} of earlier steps still held"
    available = device.idle - device.releasable + (request.free or 0)
    if device.idle >= LEAST_IDLE * device.reserved and available >= request.size > device.largest:
        if device.largest:
            block, confidence = f"the largest block {size_text(device.largest)}", 0.9
        else:
            block, confidence = "not in one block", 0.75
        return FRAGMENTED, confidence, f"{size_text(device.idle)} idle, {block}"
    if others and device.reserved > _OUTLIER_FACTOR * median(others):
        more = size_text(device.reserved - median(others))
        return ONE_RANK, 0.8, f"{more} more reserved than on the other ranks"
    purpose, size = next(iter(device.purposes.items()), (AllocationPurpose.UNKNOWN, 0))
    reason = f"{size_text(size)} of {size_text(device.held)} in tensors are "
    return TOO_LARGE, 0.85, reason + _PURPOSE_NAMES[purpose]


def _significant_retained(device: DeviceMemory) -> int:
    """Return the retained bytes if they are a significant share of held memory, otherwise 0."""
    retained = sum(each.bytes for each in device.retained)
    return retained if retained > _MIN_RETAINED_SHARE * device.held else 0


def _usage_finding(snapshot: MemorySnapshot, device: DeviceMemory) -> Finding:
    """Return a note on what is held, or a warning about retained memory."""
    if retained := _significant_retained(device):
        cause, level = KEPT, Level.WARNING
        state = f"{size_text(retained)} of earlier steps still held"
    else:
        cause, level = TOO_LARGE, Level.NOTE
        state = f"of {size_text(device.reserved)} reserved {size_text(device.held)} are held"
    return make_finding(
        by_name(cause),
        f"no request failed in {snapshot.name}: {state}",
        level=level,
        subject=_subject(snapshot, device, None),
        evidence=tuple(_facts(snapshot, device)),
        remedies=tuple(_remedies(device, None, cause)),
        confidence=0.85,
    )


def _subject(
    snapshot: MemorySnapshot, device: DeviceMemory, request: FailedRequest | None
) -> Subject:
    """Return the line that retained the most, otherwise the line of the failed request."""
    site = next((retained.site for retained in device.retained), None)
    site = site or (request.site if request is not None else None)
    file, line = (site.file, site.line) if site is not None else (None, None)
    return Subject(rank=snapshot.rank, gpu=device.device, file=file, line=line)


def _facts(snapshot: MemorySnapshot, device: DeviceMemory) -> Iterator[Fact]:
    """Yield what the memory consists of, idle memory, and the lines that allocated the most."""
    segments = f"{snapshot.name}: segments of device {device.device}"
    parts = ", ".join(f"{size_text(size)} {purpose}" for purpose, size in device.purposes.items())
    held = "held at the failure" if device.failed_requests else "held"
    yield Fact(text=f"{held}: {parts}", origin=segments, rank=snapshot.rank)
    waiting = f", {size_text(device.waiting)} wait for another stream" if device.waiting else ""
    block = f" (the largest block {size_text(device.largest)})" if device.largest else ""
    idle = f"{size_text(device.idle)} are idle{block}{waiting}"
    yield Fact(
        text=f"of {size_text(device.reserved)} reserved {idle}", origin=segments, rank=snapshot.rank
    )
    for retained in device.retained[:_MAX_SITES]:
        blocks = f"{size_text(retained.bytes)} in {pluralize(retained.blocks, 'block')}"
        yield Fact(
            text=f"{blocks} of {retained.steps} steps, allocated at {retained.site}, still held",
            origin=f"{snapshot.name}: events of device {device.device}",
            rank=snapshot.rank,
        )
    known = [site for site in device.sites if site.site is not None]
    known.sort(key=lambda site: (not is_user_frame(site.site), -site.bytes))
    for site in known[:_MAX_SITES]:
        blocks = f"{size_text(site.bytes)} in {pluralize(site.blocks, 'block')}"
        text = f"{blocks} allocated at {site.site}: {site.purpose}"
        yield Fact(text=text, origin=segments, rank=snapshot.rank)


def _remedies(device: DeviceMemory, request: FailedRequest | None, cause: str) -> Iterator[Remedy]:
    """Yield the cause's own remedies, then changes of the largest purposes with their savings."""
    if cause == KEPT:  # the memory use without retained blocks is unknown
        yield from by_name(KEPT).remedies
        return
    if cause == ONE_RANK:
        yield from by_name(ONE_RANK).remedies[:1]
    if cause == FRAGMENTED and not device.expandable:
        yield suggest_expandable_segments(device.idle)
    purposes = dict(device.purposes)
    # Backward allocates for what forward keeps, by an unknown share: change forward's purposes.
    purposes.pop(AllocationPurpose.BACKWARD, None)
    any_specific = False
    for purpose, size in purposes.items():
        if purpose is AllocationPurpose.UNKNOWN or size < _MIN_PURPOSE_SHARE * device.held:
            continue
        for remedy in suggest_savings(purpose, size):
            any_specific = True
            yield remedy
    if request is not None and request.purpose not in (*purposes, AllocationPurpose.UNKNOWN):
        yield from suggest_savings(request.purpose, None)
    if not any_specific:
        yield RECORD_SNAPSHOT


def _ruled_out(device: DeviceMemory, root: Finding) -> Iterator[RuledOut]:
    if not device.failed_requests or root.cause == FRAGMENTED or device.returned:
        return
    request = device.failed_requests[-1]
    if device.idle + (request.free or 0) < request.size:
        why = f"all idle memory ({size_text(device.idle)}) is less than {size_text(request.size)}"
        yield RuledOut(FRAGMENTED, why)


def _unseen(snapshot: MemorySnapshot) -> Iterator[str]:
    if snapshot.dropped:
        yield f"{snapshot.name}: {snapshot.dropped} invalid segments or blocks skipped"
    for device in snapshot.devices:
        unknown = device.purposes.get(AllocationPurpose.UNKNOWN, 0)
        if unknown > _MAX_UNKNOWN_SHARE * device.held:
            share = f"{size_text(unknown)} of {size_text(device.held)}"
            yield (
                f"{snapshot.name}: the purpose of {share} in tensors, which have no frames: "
                "allocated by backward (without Python frames) or before _record_memory_history"
            )
        if device.returned:
            yield (
                f"{snapshot.name}: the size of idle blocks at the failure; "
                f"{size_text(device.returned)} were freed before the snapshot was written, "
                "and are restored from its events"
            )

"""GPU memory, Xids, storage and NaN: lines whose cause depends on other lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from holdfast.causes.checkpoint.checkpoint_folder_unusable import CHECKPOINT_FOLDER_UNUSABLE
from holdfast.causes.checkpoint.checkpoint_io_slow_timeout import CHECKPOINT_IO_SLOW_TIMEOUT
from holdfast.causes.gpu.cuda_kernel_fault import CUDA_KERNEL_FAULT
from holdfast.causes.gpu.gpu_fell_off_bus_xid_ecc import GPU_FELL_OFF_BUS_XID_ECC
from holdfast.causes.memory.oom_on_one_rank_then_timeout import OOM_ON_ONE_RANK_THEN_TIMEOUT
from holdfast.causes.memory.tensors_kept_over_steps import TENSORS_KEPT_OVER_STEPS
from holdfast.core.findings import Fact
from holdfast.core.rank_table import SourceLine
from holdfast.core.text import pluralize
from holdfast.diagnose.log_rules.candidates import CauseCandidate, candidate_of, lines_of
from holdfast.diagnose.log_rules.log_index import FAILURES, LogIndex, position
from holdfast.diagnose.log_rules.rank_inference import find_absent_rank, find_rank
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier
from holdfast.diagnose.logs import LoggedSignal, LogLine
from holdfast.host.allocation_purpose import AllocationPurpose, purpose_of
from holdfast.host.gpus.xids import XIDS, Xid, XidKind
from holdfast.report.evidence_summary import size_text
from holdfast.watcher import oom_messages
from holdfast.watcher.rules.gpu_memory import TOO_LARGE, OomReason, explain_oom

#: Reports that a rank waited too long for another.
_TIMEOUTS = (
    "gloo-timeout",
    "socket-timeout",
    "store-key-timeout",
    "watchdog-stuck",
    "barrier-missing",
    "time-limit",
)
_OOM = "cuda-out-of-memory"
_UNKNOWN_XID = Xid("not in NVIDIA's list", XidKind.GPU)
_HARMLESS_XIDS = frozenset({XidKind.FOLLOWS, XidKind.NOTE, XidKind.DISPLAY})
_CHECKPOINT = re.compile(
    r"[Cc]heckpoint|ckpt|\.pt\b|\.safetensors|PytorchStreamWriter|inline_container"
)
#: Memory that grows in nearly all of at least so many readings, by this factor, is kept.
MIN_READINGS, GROWING, GROWN = 8, 0.9, 1.5
#: Lines of a traceback.
_NEAR_LINES = 24


def find_oom(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield GPU memory exhaustion: on one rank while others waited for it, or on all; and why."""
    signals = index.unrecovered(_OOM)
    if not signals:
        return
    ranks = index.ranks(_OOM)
    waiting = index.ranks("watchdog-timeout", "gloo-timeout", "peer-closed", "dump-signal") - ranks
    lines = tuple(dict.fromkeys(lines_of(signals)))
    rank = find_rank(index, signals)
    error = _explain_error(index, lines, rank)
    clause = f": {error.why.clause}" if error.why.clause else ""
    remedies = error.why.remedies
    if len(ranks) == 1 and waiting and index.failed_ranks <= ranks:
        cause, confidence = OOM_ON_ONE_RANK_THEN_TIMEOUT.name, 0.85
        verb = "was" if len(waiting) == 1 else "were"
        message = (
            f"only rank {rank} ran out of GPU memory; {pluralize(len(waiting), 'other rank')} "
            f"{verb} waiting for it{clause}"
        )
        if remedies:
            remedies = (*OOM_ON_ONE_RANK_THEN_TIMEOUT.remedies[:1], *remedies)
    else:
        cause, confidence = error.why.cause, error.why.confidence
        if cause == TOO_LARGE and (growth := _find_growth(index)):
            cause, confidence, clause = TENSORS_KEPT_OVER_STEPS.name, 0.75, f": {growth}"
            remedies = TENSORS_KEPT_OVER_STEPS.remedies
        first = f" (rank {rank} first)" if rank is not None else ""
        message = f"GPU memory ran out{first}{clause}"
        rank = rank or 0  # without a rank in any line, the first stands for all
    yield CauseCandidate(
        cause,
        Tier.DEVICE,
        confidence,
        message,
        lines,
        rank,
        place=error.place,
        facts=error.facts,
        remedies=remedies,
    )


def _find_growth(index: LogIndex) -> str:
    """Return by how much the memory of a rank grew from step to step; empty if it did not."""
    by_rank: dict[int | None, list[float]] = defaultdict(list)
    errors = {position(one) for one in index.all(_OOM)}
    for one in index.all("memory-reading"):
        if position(one) in errors:
            continue
        scale = 1024 if str(one.fields.get("unit", "G")).startswith("G") else 1
        by_rank[one.line.rank].append(float(one.fields["size"]) * scale)
    for sizes in by_rank.values():
        steps = list(pairwise(sizes))
        grown = sum(later > earlier for earlier, later in steps)
        is_growing = len(steps) >= MIN_READINGS and grown >= GROWING * len(steps)
        if is_growing and 0 < GROWN * sizes[0] <= sizes[-1]:
            return f"memory grew in every step, from {sizes[0]:,.0f} to {sizes[-1]:,.0f} MiB"
    return ""


class _OomError(NamedTuple):
    """An out-of-memory error: its reason, its numbers, and the user's line that allocated."""

    why: OomReason
    facts: tuple[Fact, ...] = ()
    place: SourceLine | None = None


def _explain_error(index: LogIndex, lines: tuple[LogLine, ...], rank: int | None) -> _OomError:
    """Explain the most detailed error, preferably of ``rank``."""
    parsed = ((line, oom_messages.parse_oom_message(line.text)) for line in lines)
    errors = [(line, error) for line, error in parsed if error is not None]
    errors.sort(
        key=lambda one: (one[1].allocated is None, one[1].requested is None, one[0].rank != rank)
    )
    if not errors or errors[0][1].requested is None:
        return _OomError(OomReason(cause=TOO_LARGE, confidence=0.85, clause=""))
    line, error = errors[0]
    trace = next((each for each in index.facts.tracebacks if each.line == line), None)
    purpose = purpose_of(trace.frames) if trace is not None else AllocationPurpose.UNKNOWN
    why = explain_oom(error, purpose)
    parts = ", ".join(f"{size_text(nbytes)} {name}" for name, nbytes in why.parts)
    total = f"of {size_text(error.capacity)}: " if error.capacity is not None else ""
    fact = Fact(text=f"{total}{parts}", origin=line.origin, rank=line.rank, time=line.time)
    return _OomError(why, (fact,) if parts else (), trace.place if trace is not None else None)


def find_xids(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield Xids of the NVIDIA driver: most are faults of the GPU, some of the program."""
    for signal in index.all("xid"):
        number, host = int(signal.fields["xid"]), signal.line.host
        xid = XIDS.get(number, _UNKNOWN_XID)
        if xid.kind in _HARMLESS_XIDS:
            continue
        cause, confidence = GPU_FELL_OFF_BUS_XID_ECC.name, 0.95
        if xid.kind is XidKind.PROGRAM:
            cause, confidence = CUDA_KERNEL_FAULT.name, 0.7
        where = f"GPU {signal.fields['pci']}" + (f" of {host}" if host else "")
        message = f"the driver reports Xid {number} ({xid.text}) for {where}"
        rank, lines = signal.line.rank, (signal.line,)
        yield CauseCandidate(cause, Tier.MACHINE, confidence, message, lines, rank, host)


def find_storage_faults(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a full or slow disk for checkpoints; full shared memory has a rule of its own."""
    for name in ("no-space", "checkpoint-slow", "checkpoint-long"):
        if name == "checkpoint-long" and not index.has_any(*FAILURES, *_TIMEOUTS):
            continue  # slow, but without effect
        for signal in index.unrecovered(name):
            text = signal.line.text
            if "shm" in text or "torch_" in text or "shm-full" in index:
                continue
            is_full = name == "no-space"
            message = SIGNAL_CAUSES["checkpoint-slow"].sentence
            cause = CHECKPOINT_IO_SLOW_TIMEOUT
            if is_full:
                of_checkpoints = _CHECKPOINT.search(text) or _is_checkpoint_near(index, signal)
                disk = "the disk that checkpoints are written to" if of_checkpoints else "a disk"
                state = "has no quota left" if "quota" in text else "is full"
                message = f"{disk} {state}"
                if not index.has_any("watchdog-timeout", *_TIMEOUTS):
                    cause = CHECKPOINT_FOLDER_UNUSABLE
            yield CauseCandidate(
                cause.name,
                Tier.DEVICE,
                0.9 if is_full and "checkpoint-word" in index else 0.6,
                message,
                (signal.line,),
                _writer(index, signal),
            )
            return


def _writer(index: LogIndex, signal: LoggedSignal) -> int | None:
    """Return the rank that wrote: that of the line, or the only one that did not wait."""
    waiting = index.ranks("watchdog-timeout", "gloo-timeout", "socket-timeout")
    rank = signal.line.rank
    if rank is None and waiting:
        return find_absent_rank(index, waiting)
    stated = {
        int(one.fields["rank"])
        for one in index.all("process-rank")
        if one.line.source == signal.line.source
    }
    return stated.pop() if rank is None and len(stated) == 1 else rank


def _is_checkpoint_near(index: LogIndex, signal: LoggedSignal) -> bool:
    """Return whether lines around ``signal`` are about a checkpoint."""
    return any(
        one.line.source == signal.line.source
        and abs(one.line.number - signal.line.number) <= _NEAR_LINES
        for one in index.all("checkpoint-word")
    )


def find_nan(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield NaN in the loss, unless training continued."""
    if signals := index.unrecovered("nan"):
        yield candidate_of(index, SIGNAL_CAUSES["nan"], signals)

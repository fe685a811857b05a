"""What of a host's checks matters while a job runs on it: what has become worse, and what may end the job.

The same rules as before a job, but for two things: notes are left out, and so is what only says whether a job could
start. Counters are compared with the first look, so that old faults are not told as new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from holdfast.facts.checks import CHECKS, Place, Seen, fact
from holdfast.facts.checks.gpu_health import GpuHealth, told_of
from holdfast.facts.checks.infiniband import InfiniBand, told
from holdfast.facts.checks.memory import Memory
from holdfast.findings import Finding, Level, Subject, finding
from holdfast.rules.causes import by_name
from holdfast.rules.machine import judge as judge_check

#: The checks that are cheap enough to be made again and again, and whose answer may change under way.
WATCHED = ("gpu-health", "amd-gpus", "kernel-log", "infiniband", "memory", "shared-memory", "disk")
_GIB = 1 << 30
#: Below both, the next allocation of some process may be the one that the kernel answers with a kill.
_LITTLE, _LITTLE_BYTES = 0.05, 2 * _GIB
#: Growth of a port's counters from which it is a fault: a link that works repeats a little now and then.
_FAULTS = {"link_downed": 1, "link_error_recovery": 1, "symbol_error": 100}
_NVLINK_FAULTS = 10
_TOLD = (Level.ERROR, Level.WARNING)


def judge(
    now: Mapping[str, Seen], first: Mapping[str, Seen], place: Place, host: str, at: float
) -> tuple[Finding, ...]:
    """Findings of all checks that were made, errors first; ``first`` is what was seen when the job began."""
    found: list[Finding] = []
    for name, seen in now.items():
        if seen.absent:
            continue
        if isinstance(seen, Memory):
            found += _memory(seen, first.get(name))
            continue
        found += (claim for claim in judge_check(CHECKS[name], seen, place, host, at) if claim.level in _TOLD)
        found += _grown(seen, first.get(name))
    found = [replace(claim, subject=replace(claim.subject, host=host)) for claim in found]
    return tuple(sorted(found, key=lambda claim: _TOLD.index(claim.level)))


def _memory(seen: Memory, first: Seen | None) -> Iterator[Finding]:
    cause = by_name("host-oom-killed")
    before = first.kills if isinstance(first, Memory) else None
    if seen.kills is not None and before is not None and seen.kills > before:
        yield finding(cause, f"the kernel has ended {seen.kills - before} processes of this control group for want of "
                      "memory since the job began", evidence=seen.facts(), confidence=0.9)  # fmt: skip
    room, whole = seen.room, seen.whole
    if room is not None and whole and room < _LITTLE * whole and room < _LITTLE_BYTES:
        of = "the control group's limit" if seen.limit == whole else "this host's memory"
        yield finding(cause, f"{room / _GIB:.1f} of {whole / _GIB:.1f} GiB of {of} are left: the kernel will soon end "
                      "a process for want of memory", level=Level.WARNING, evidence=seen.facts(),
                      confidence=0.7)  # fmt: skip


def _grown(seen: Seen, first: Seen | None) -> Iterator[Finding]:
    """Errors that were counted since the first look."""
    if isinstance(seen, InfiniBand) and isinstance(first, InfiniBand):
        before = {port.name: port.errors for port in first.ports}
        for port in seen.ports:
            if port.name not in before:
                continue
            grown = {name: port.errors.get(name, 0) - before[port.name].get(name, 0) for name in _FAULTS}
            more = {name: count for name, count in grown.items() if count >= _FAULTS[name]}
            if more:
                counted = ", ".join(f"{name} {count}" for name, count in more.items())
                yield finding(by_name("ib-port-degraded"), f"{port.name} has counted {counted} since the job began",
                              level=Level.WARNING, evidence=(told(port),), confidence=0.8)  # fmt: skip
    if isinstance(seen, GpuHealth) and seen.stuck:
        yield finding(by_name("gpu-fell-off-bus-xid-ecc"), "the NVIDIA driver no longer answers: a GPU or its firmware "
                      "is stuck", evidence=seen.facts(), confidence=0.7)  # fmt: skip
    if isinstance(seen, GpuHealth) and isinstance(first, GpuHealth) and seen.answer and first.answer:
        known = {gpu.uuid: gpu.nvlink_errors for gpu in first.answer.gpus}
        for gpu in seen.answer.gpus:
            then, errors = known.get(gpu.uuid), gpu.nvlink_errors
            if isinstance(errors, int) and isinstance(then, int) and errors - then >= _NVLINK_FAULTS:
                yield finding(
                    by_name("gpu-link-degraded"), f"the NVLinks of GPU {gpu.index} have had {errors - then} errors "
                    "or repeats since the job began", level=Level.WARNING, subject=Subject(gpu=gpu.index),
                    confidence=0.6,
                    evidence=(told_of(gpu, seen.answer.source),
                              fact("before the job", then, seen.answer.source)),
                )  # fmt: skip
        lost = sorted(set(known) - {gpu.uuid for gpu in seen.answer.gpus})
        if lost:
            yield finding(by_name("gpu-fell-off-bus-xid-ecc"), f"{', '.join(lost)} was there when the job began, and "
                          "the driver no longer lists it", evidence=seen.facts(), confidence=0.95)  # fmt: skip

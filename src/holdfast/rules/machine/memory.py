"""Is there memory for the workers, and will the kernel give it?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.memory import Memory
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name

_GIB = 1 << 30
#: A worker that has imported torch takes about 0.5 GiB on a CPU and 2 to 4 GiB with a CUDA context, without any data.
_LEAST_PER_WORKER, _LITTLE_PER_WORKER = _GIB // 2, 2 * _GIB
_LITTLE = 0.1


def judge(seen: Memory, place: Place) -> Iterator[Finding]:
    """What is free is compared with what the workers need at least; then limits that strike without a warning."""
    if seen.room is not None and seen.whole:
        yield from _room(seen, seen.room, seen.whole, place.workers or 1)
    if seen.kills:
        yield _claim(
            seen,
            Level.NOTE,
            f"the kernel has ended {seen.kills} processes of this control group for want of memory so far",
            0.6,
        )
    if seen.promised is not None and seen.promisable is not None and seen.promised > (1 - _LITTLE) * seen.promisable:
        left = max(0, seen.promisable - seen.promised)
        yield _claim(
            seen,
            Level.WARNING,
            f"the kernel promises no more memory than it has, and {left / _GIB:.1f} GiB "
            "are left to promise: allocations fail although memory is free",
            0.8,
        )


def _room(seen: Memory, room: int, whole: int, workers: int) -> Iterator[Finding]:
    of = "the control group's limit" if seen.limit is not None and seen.limit == whole else "this host's memory"
    share = f"{room / _GIB:.1f} of {whole / _GIB:.1f} GiB of {of} are free"
    if room < workers * _LEAST_PER_WORKER:
        yield _claim(
            seen,
            Level.ERROR,
            f"{share}: too little for {workers} worker{'s' * (workers > 1)}, as each takes "
            "half a GiB before it has any data",
            0.8,
        )
    elif room < workers * _LITTLE_PER_WORKER:
        yield _claim(
            seen,
            Level.WARNING,
            f"{share}, {room / workers / _GIB:.1f} GiB for each of {workers} "
            f"worker{'s' * (workers > 1)}: with loader workers or a CUDA context that is soon used up",
            0.5,
        )
    elif room < _LITTLE * whole:
        yield _claim(seen, Level.WARNING, f"{share}: others use the rest", 0.5)


def _claim(seen: Memory, level: Level, message: str, confidence: float) -> Finding:
    return finding(by_name("host-oom-killed"), message, level=level, evidence=seen.facts(), confidence=confidence)

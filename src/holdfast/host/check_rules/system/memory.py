"""Judges whether there is enough memory for the workers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.memory import MemoryResult

_GIB = 1 << 30
#: A worker that has imported torch takes about 0.5 GiB on a CPU and 2 to 4 GiB with a CUDA context,
#: without any data.
_MIN_PER_WORKER, _LOW_PER_WORKER = _GIB // 2, 2 * _GIB
_LOW_SHARE = 0.1


def judge(result: MemoryResult, context: CheckContext) -> Iterator[Finding]:
    """Compare free memory with the minimum of the workers.

    Then check OOM kills and strict overcommit.
    """
    if result.available_bytes is not None and result.limit_bytes:
        yield from _judge_free_memory(
            result, result.available_bytes, result.limit_bytes, context.workers or 1
        )
    if result.kills:
        message = f"the OOM killer has ended {result.kills} processes in this cgroup so far"
        yield _memory_finding(result, Level.NOTE, message, 0.6)
    committed, maximum = result.committed, result.commit_limit
    if committed is not None and maximum is not None and committed > (1 - _LOW_SHARE) * maximum:
        left = max(0, maximum - committed)
        yield _memory_finding(
            result,
            Level.WARNING,
            f"strict overcommit (vm.overcommit_memory=2) leaves only {left / _GIB:.1f} GiB to "
            "commit: allocations fail although memory is free",
            0.8,
        )


def _judge_free_memory(
    result: MemoryResult, free: int, total: int, workers: int
) -> Iterator[Finding]:
    is_cgroup = result.limit is not None and result.limit == total
    source = "the cgroup limit" if is_cgroup else "this host's memory"
    text = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB of {source} are free"
    count = f"{workers} worker{'s' * (workers > 1)}"
    if free < workers * _MIN_PER_WORKER:
        yield _memory_finding(
            result,
            Level.ERROR,
            f"{text}: too little for {count}; each needs 0.5 GiB before it loads any data",
            0.8,
        )
    elif free < workers * _LOW_PER_WORKER:
        yield _memory_finding(
            result,
            Level.WARNING,
            f"{text}, {free / workers / _GIB:.1f} GiB for each of {count}: loader workers or a "
            "CUDA context may exceed that",
            0.5,
        )
    elif free < _LOW_SHARE * total:
        yield _memory_finding(result, Level.WARNING, f"{text}: other processes use the rest", 0.5)


def _memory_finding(result: MemoryResult, level: Level, message: str, confidence: float) -> Finding:
    return make_finding(
        HOST_OOM_KILLED, message, level=level, evidence=result.facts(), confidence=confidence
    )

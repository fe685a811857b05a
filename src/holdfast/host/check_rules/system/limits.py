"""Judges whether the resource limits (ulimits) suffice for a rank."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.environment.fd_limit import FD_LIMIT
from holdfast.causes.environment.process_limit import PROCESS_LIMIT
from holdfast.causes.memory.memlock_limit import MEMLOCK_LIMIT
from holdfast.causes.remedies import disruptive
from holdfast.core.findings import Cause, Finding, Level, Remedy, Unknown, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.limits import LimitsResult, ResourceLimit

#: Linux's default is 1024: a rank with sockets to 500 others and a data loader exceeds it.
_MIN_FILES, _RECOMMENDED_FILES = 1024, 4096
_MIN_PROCESSES = 4096
#: glibc gives each thread a stack of this limit; OpenMP and BLAS workers overflow smaller ones.
_MIN_STACK = 1 << 20
#: More than NCCL and an RDMA driver pin for a rank, though vendors recommend "unlimited".
_MIN_LOCKED = 64 << 30
_RAISE = "Raise the limit where the job starts."


def judge(result: LimitsResult, _context: CheckContext) -> Iterator[Finding]:
    """Locked memory matters only with RDMA; too little is an error there."""
    files = _limit_below(result.files, _RECOMMENDED_FILES)
    if files is not None:
        yield _limit_finding(
            result,
            FD_LIMIT,
            Level.ERROR if files < _MIN_FILES else Level.WARNING,
            f"open-file limit (ulimit -n) is {files}: many ranks or loader workers exceed it",
            _raise_limit(result.files, "n", 1 << 20),
        )
    locked = _limit_below(result.locked, _MIN_LOCKED)
    if result.rdma and locked is not None:
        yield _limit_finding(
            result,
            MEMLOCK_LIMIT,
            Level.ERROR,
            f"locked-memory limit (ulimit -l) is {locked >> 10} KiB: the RDMA adapters of this "
            "host must lock all communication buffers",
            disruptive(_RAISE, "ulimit -l unlimited"),
        )
    processes = _limit_below(result.processes, _MIN_PROCESSES)
    if processes is not None:
        yield _limit_finding(
            result,
            PROCESS_LIMIT,
            Level.WARNING,
            f"process limit (ulimit -u) is {processes}: ranks with loader workers and threads need "
            f"thousands",
            _raise_limit(result.processes, "u", 1 << 16),
        )
    stack = _limit_below(result.stack, _MIN_STACK)
    if stack is not None:
        yield _limit_finding(
            result,
            PROCESS_LIMIT,
            Level.WARNING,
            f"stack limit (ulimit -s) is {stack >> 10} KiB: threads of numeric libraries overflow "
            f"it and crash",
            disruptive(_RAISE, "ulimit -s 8192"),
        )


def _limit_below(limit: ResourceLimit | Unknown, minimum: int) -> int | None:
    """Return the soft limit if it is below ``minimum``, else None."""
    if isinstance(limit, Unknown) or limit.soft is None or limit.soft >= minimum:
        return None
    return limit.soft


def _raise_limit(limit: ResourceLimit | Unknown, letter: str, wanted: int) -> Remedy:
    """Any user may raise a limit up to the hard limit; beyond it, only root."""
    hard = wanted if isinstance(limit, Unknown) or limit.hard is None else min(limit.hard, wanted)
    unprivileged = isinstance(limit, Unknown) or limit.soft is None or hard > limit.soft
    return disruptive(
        _RAISE if unprivileged else "Let root raise it (limits.conf, docker --ulimit).",
        f"ulimit -{letter} {hard if unprivileged else wanted}",
    )


def _limit_finding(
    result: LimitsResult, cause: Cause, level: Level, message: str, remedy: Remedy
) -> Finding:
    return make_finding(
        cause,
        message,
        level=level,
        evidence=result.facts(),
        remedies=(remedy, *cause.remedies[1:]),
        confidence=0.8,
    )

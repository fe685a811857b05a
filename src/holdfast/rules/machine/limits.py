"""Are the limits on one process wide enough for a rank?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.limits import Limit, Limits
from holdfast.findings import Finding, Level, Remedy, Safety, Unknown, finding
from holdfast.rules.causes import by_name

#: Linux gives 1024 by default: a rank with sockets to 500 others and a data loader is over it.
_FEW_FILES, _ENOUGH_FILES = 1024, 4096
_FEW_PROCESSES = 4096
#: glibc gives each thread of a process a stack of this limit; OpenMP's and BLAS' workers overflow smaller ones.
_SMALL_STACK = 1 << 20
#: Beyond the buffers that NCCL and an RDMA driver pin for a rank, though not "unlimited" as the vendors advise.
_MUCH_LOCKED = 64 << 30


def judge(seen: Limits, _place: Place) -> Iterator[Finding]:
    """Locked memory matters with RDMA alone; too little is an error there."""
    if _below(seen.files, _ENOUGH_FILES) is not None:
        tiny = _below(seen.files, _FEW_FILES) is not None
        yield _claim(
            seen,
            "fd-limit",
            Level.ERROR if tiny else Level.WARNING,
            f"a process may have {_below(seen.files, _ENOUGH_FILES)} files and sockets open: with many ranks or loader "
            "workers the next one fails",
            _raised(seen.files, "n", 1 << 20),
        )
    locked = _below(seen.locked, _MUCH_LOCKED)
    if seen.rdma and locked is not None:
        yield _claim(
            seen,
            "memlock-limit",
            Level.ERROR,
            f"{locked >> 10} KiB may be locked, and the RDMA adapters here need to lock all that they send",
            Remedy(text="Raise it where the job starts.", command="ulimit -l unlimited", safety=Safety.DISRUPTIVE),
        )
    if _below(seen.processes, _FEW_PROCESSES) is not None:
        yield _claim(
            seen,
            "process-limit",
            Level.WARNING,
            f"this user may have {_below(seen.processes, _FEW_PROCESSES)} processes and threads: ranks with their "
            "loader workers and threads need thousands",
            _raised(seen.processes, "u", 1 << 16),
        )
    if _below(seen.stack, _SMALL_STACK) is not None:
        yield _claim(
            seen,
            "process-limit",
            Level.WARNING,
            f"stacks may grow to {(_below(seen.stack, _SMALL_STACK) or 0) >> 10} KiB: threads of numeric libraries "
            "crash beyond it",
            Remedy(text="Raise it where the job starts.", command="ulimit -s 8192", safety=Safety.DISRUPTIVE),
        )


def _below(limit: Limit | Unknown, least: int) -> int | None:
    """The limit that holds, where it is below what is wanted."""
    if isinstance(limit, Unknown) or limit.soft is None or limit.soft >= least:
        return None
    return limit.soft


def _raised(limit: Limit | Unknown, letter: str, wanted: int) -> Remedy:
    """Up to the hard limit anybody may raise it; beyond, root must."""
    hard = wanted if isinstance(limit, Unknown) or limit.hard is None else min(limit.hard, wanted)
    alone = isinstance(limit, Unknown) or limit.soft is None or hard > limit.soft
    text = "Raise it where the job starts." if alone else "Have root raise it (limits.conf, docker --ulimit)."
    return Remedy(text=text, command=f"ulimit -{letter} {hard if alone else wanted}", safety=Safety.DISRUPTIVE)


def _claim(seen: Limits, cause: str, level: Level, message: str, remedy: Remedy) -> Finding:
    entry = by_name(cause)
    return finding(
        entry, message, level=level, evidence=seen.facts(), remedies=(remedy, *entry.remedies[1:]), confidence=0.8
    )

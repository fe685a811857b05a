"""The expected result of a case, and how to run it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

HEALTHY = "no-failure"


@dataclass(frozen=True)
class Expected:
    """Expected cause and rank of a case, and how to run it.

    ``accepted``: causes as correct as ``cause``. ``rank``: the rank to report, None if the log does not
    determine it. ``program``: set if several cases share one. ``options`` are passed to the launcher,
    ``arguments`` to the program. ``needs``: packages required to run the case.
    """

    cause: str
    accepted: tuple[str, ...] = ()
    rank: int | None = None
    processes: int = 3
    options: tuple[str, ...] = ("--standalone",)
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    program: str = ""
    launcher: str = "torchrun"
    needs: tuple[str, ...] = ()
    signal_after_s: float | None = None  # when ``signal`` is sent to the launcher
    signal: signal.Signals = signal.SIGTERM
    shm_bytes: int | None = None  # size of a separate /dev/shm
    kernel_log: bool = False  # also store the kernel's messages; for cases with a memory cgroup

    @property
    def as_root(self) -> bool:
        """Return whether the case needs root, for its own mount, host name or cgroup."""
        return (
            self.shm_bytes is not None
            or self.kernel_log
            or self.launcher in {"nodes", "first-node-alone"}
        )


#: Causes that the logs of the other ranks support if one rank is late.
LATE = ("watchdog-timeout-straggler", "rank-missing-collective")

"""What is known of a case before anybody judges it: cause, rank, and how it is made."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

HEALTHY = "no-failure"


@dataclass(frozen=True)
class Expected:
    """``accepted``: causes as good as ``cause``. ``rank``: the one to name, None where a log cannot tell.

    ``program``: where several cases share one. ``options`` go to the launcher, ``arguments`` to the program.
    ``needs``: the packages without which the case cannot be made anew.
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
    signal_after_s: float | None = None  # when the launcher gets ``signal``
    signal: signal.Signals = signal.SIGTERM
    shm_bytes: int | None = None  # size of a /dev/shm of its own
    kernel_log: bool = False  # the kernel's lines are kept as well; for cases with a memory cgroup

    @property
    def as_root(self) -> bool:
        """True where a mount, a host name or a cgroup of its own is needed."""
        return (
            self.shm_bytes is not None
            or self.kernel_log
            or self.launcher in {"nodes", "first-node-alone"}
        )


LATE = (
    "watchdog-timeout-straggler",
    "rank-missing-collective",
)  # a rank that comes late, seen from the others

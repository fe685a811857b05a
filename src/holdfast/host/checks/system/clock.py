"""The clock: synchronization, offset, and clock source.

adjtimex with no mode bits only reads the kernel's synchronization state; chrony adds the offset
where it runs.
"""

from __future__ import annotations

import ctypes
import os
import sys

from holdfast.core.findings import Fact, Unknown
from holdfast.host import programs
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

_FOLDER = "/sys/devices/system/clocksource/clocksource0"
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC of <linux/timex.h>


class _Timex(ctypes.Structure):
    """``struct timex`` of <linux/timex.h> on 64 bits, up to the last field read.

    The kernel fills 208 bytes.
    """

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


class ClockResult(CheckResult, frozen=True, kw_only=True):
    """``synchronized`` and ``error_s`` (an upper bound) are from the kernel.

    ``offset_s`` and ``server`` from chrony. ``source`` is the clock source in use,
    ``other_sources`` the available alternatives.
    """

    synchronized: bool | Unknown
    error_s: float | None = None
    offset_s: float | None = None
    server: str = ""
    source: str | Unknown
    other_sources: tuple[str, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        state: str | Unknown
        if isinstance(self.synchronized, Unknown):
            state = self.synchronized
        else:
            state = "synchronized" if self.synchronized else "not synchronized, by the kernel"
        facts = [check_fact("clock", state, "adjtimex")]
        if self.offset_s is not None:
            facts.append(
                check_fact(
                    "offset", f"{self.offset_s * 1e3:.3f} ms from {self.server}", "chronyc tracking"
                )
            )
        elif self.synchronized is True and self.error_s is not None:
            facts.append(check_fact("maximum error", f"{self.error_s * 1e3:.1f} ms", "adjtimex"))
        others = f" (available: {', '.join(self.other_sources)})" if self.other_sources else ""
        source = self.source if isinstance(self.source, Unknown) else self.source + others
        return (*facts, check_fact("clock source", source, f"{_FOLDER}/current_clocksource"))


def inspect(context: CheckContext) -> ClockResult:
    """Query the kernel and chrony; a recorded tree has only the clock source."""
    source = proc.read_text(context.path(f"{_FOLDER}/current_clocksource"))
    others = proc.read_text(context.path(f"{_FOLDER}/available_clocksource"))
    synchronized, error_s = (
        _kernel_state()
        if context.root == "/"
        else (Unknown("a recorded tree has no adjtimex state"), None)
    )
    tracked = _chrony_state() if context.root == "/" else None
    current = source if isinstance(source, Unknown) else source.strip()
    return ClockResult(
        synchronized=True if tracked is not None else synchronized,
        error_s=error_s,
        offset_s=tracked[1] if tracked else None,
        server=tracked[0] if tracked else "",
        source=current,
        other_sources=tuple(name for name in others.split() if name != current)
        if isinstance(others, str)
        else (),
    )


def _kernel_state() -> tuple[bool | Unknown, float | None]:
    if sys.maxsize < 1 << 32:
        return Unknown("adjtimex is only read on 64-bit machines"), None
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        return Unknown(f"adjtimex: {os.strerror(ctypes.get_errno())}"), None
    return not timex.status & _UNSYNCHRONIZED, timex.maxerror / 1e6


def _chrony_state() -> tuple[str, float] | None:
    """Return chrony's server and the offset in seconds.

    None if it does not run or has no server yet.
    """
    return parse_chrony_tracking(programs.run_program(("chronyc", "-c", "tracking"), 2.0))


def parse_chrony_tracking(answer: bytes | Unknown) -> tuple[str, float] | None:
    """Parse ``chronyc -c tracking``: id, server, stratum, time, offset in s, … leap status."""
    fields = (
        [] if isinstance(answer, Unknown) else answer.decode(errors="replace").strip().split(",")
    )
    if len(fields) != 14 or fields[13] == "Not synchronised":
        return None
    try:
        return fields[1], float(fields[4])
    except ValueError:
        return None

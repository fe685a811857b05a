"""The clock: is it kept right, how far is it off, and how dear is it to read?

The kernel says whether somebody keeps it right (adjtimex, which changes nothing when it is asked for nothing). chrony
knows more, where it runs.
"""

from __future__ import annotations

import ctypes
import os
import sys

from holdfast.facts import proc, programs
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

_FOLDER = "/sys/devices/system/clocksource/clocksource0"
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC of <linux/timex.h>


class _Timex(ctypes.Structure):
    """``struct timex`` of <linux/timex.h> on 64 bits, up to what is read; the kernel fills 208 bytes."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256),
    ]  # fmt: skip


class Clock(Seen, frozen=True, kw_only=True):
    """``synchronized`` and ``error_s`` (at most) are the kernel's; ``offset_s`` and ``server`` chrony's."""

    synchronized: bool | Unknown
    error_s: float | None = None
    offset_s: float | None = None
    server: str = ""
    hardware: str | Unknown
    others: tuple[str, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        kept: str | Unknown
        if isinstance(self.synchronized, Unknown):
            kept = self.synchronized
        else:
            kept = "kept right" if self.synchronized else "nobody keeps it right, by the kernel"
        told = [fact("clock", kept, "adjtimex")]
        if self.offset_s is not None:
            told.append(fact("off by", f"{self.offset_s * 1e3:.3f} ms of {self.server}", "chronyc tracking"))
        elif self.synchronized is True and self.error_s is not None:
            told.append(fact("off by at most", f"{self.error_s * 1e3:.1f} ms", "adjtimex"))
        others = f" (there are also {', '.join(self.others)})" if self.others else ""
        hardware = self.hardware if isinstance(self.hardware, Unknown) else self.hardware + others
        return (*told, fact("read from", hardware, f"{_FOLDER}/current_clocksource"))


def look(place: Place) -> Clock:
    """Ask the kernel and chrony; of a recorded tree only the source is known."""
    hardware = proc.text(place.path(f"{_FOLDER}/current_clocksource"))
    others = proc.text(place.path(f"{_FOLDER}/available_clocksource"))
    kept, error_s = _kernel() if place.root == "/" else (Unknown("the kernel of another host cannot be asked"), None)
    tracked = _chrony() if place.root == "/" else None
    current = hardware if isinstance(hardware, Unknown) else hardware.strip()
    return Clock(
        synchronized=True if tracked is not None else kept,
        error_s=error_s,
        offset_s=tracked[1] if tracked else None,
        server=tracked[0] if tracked else "",
        hardware=current,
        others=tuple(name for name in others.split() if name != current) if isinstance(others, str) else (),
    )


def _kernel() -> tuple[bool | Unknown, float | None]:
    if sys.maxsize < 1 << 32:
        return Unknown("adjtimex is read on machines of 64 bits alone"), None
    asked = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(asked)) < 0:
        return Unknown(f"adjtimex: {os.strerror(ctypes.get_errno())}"), None
    return not asked.status & _UNSYNCHRONIZED, asked.maxerror / 1e6


def _chrony() -> tuple[str, float] | None:
    """Its server and how far off the clock is, in seconds; None where it does not run or has found no server yet."""
    return tracking(programs.said(("chronyc", "-c", "tracking"), 2.0))


def tracking(answer: bytes | Unknown) -> tuple[str, float] | None:
    """The line that ``chronyc -c tracking`` prints: id, server, stratum, time, offset in seconds, … leap status."""
    fields = [] if isinstance(answer, Unknown) else answer.decode(errors="replace").strip().split(",")
    if len(fields) != 14 or fields[13] == "Not synchronised":
        return None
    try:
        return fields[1], float(fields[4])
    except ValueError:
        return None

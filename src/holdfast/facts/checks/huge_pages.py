"""Huge pages: those that are set aside, and what the kernel does to give them without being asked."""

from __future__ import annotations

import re

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.memory import meminfo, of
from holdfast.findings import Fact, Unknown

_FOLDER = "/sys/kernel/mm/transparent_hugepage"
_CHOSEN = re.compile(r"\[([\w+]+)\]")


class HugePages(Seen, frozen=True, kw_only=True):
    """``reserved`` and ``idle`` in bytes: set aside, and of them used by nobody. The others are the kernel's words."""

    reserved: int | Unknown
    idle: int | Unknown
    total: int | Unknown
    enabled: str | Unknown
    defrag: str | Unknown

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        told = [fact("transparent huge pages", self.enabled, f"{_FOLDER}/enabled"),
                fact("made free for them", self.defrag, f"{_FOLDER}/defrag")]  # fmt: skip
        if isinstance(self.reserved, Unknown) or isinstance(self.idle, Unknown):
            return (*told, fact("huge pages set aside", self.reserved, "/proc/meminfo"))
        text = f"{self.reserved >> 20:,} MiB, {self.idle >> 20:,} MiB of them idle" if self.reserved else "none"
        return (*told, fact("huge pages set aside", text, "/proc/meminfo"))


def look(place: Place) -> HugePages:
    """Read /sys and /proc."""
    known = meminfo(place)
    size = of(known, "Hugepagesize")
    counts = [of(known, name) for name in ("HugePages_Total", "HugePages_Free")]
    reserved, idle = (
        count if isinstance(count, Unknown) else size if isinstance(size, Unknown) else count * size for count in counts
    )
    if isinstance(known, dict) and "HugePages_Total" not in known:  # a kernel without them
        reserved = idle = 0
    return HugePages(reserved=reserved, idle=idle, total=of(known, "MemTotal"), enabled=_chosen(place, "enabled"),
                     defrag=_chosen(place, "defrag"))  # fmt: skip


def _chosen(place: Place, name: str) -> str | Unknown:
    content = proc.text(place.path(f"{_FOLDER}/{name}"))
    if isinstance(content, proc.Gone):
        return "not in this kernel"
    found = content if isinstance(content, Unknown) else _CHOSEN.search(content)
    if isinstance(found, Unknown):
        return found
    return found[1] if found else Unknown(f"{_FOLDER}/{name} names no choice")

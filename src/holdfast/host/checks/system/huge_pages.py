"""Huge pages: reserved ones, and the modes of transparent huge pages (THP)."""

from __future__ import annotations

import re

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.system.memory import meminfo_bytes, read_meminfo
from holdfast.host.processes import proc

_FOLDER = "/sys/kernel/mm/transparent_hugepage"
_SELECTED = re.compile(r"\[([\w+]+)\]")


class HugePagesResult(CheckResult, frozen=True, kw_only=True):
    """``reserved`` and ``idle`` (reserved but unused) in bytes.

    ``enabled`` and ``defrag`` are THP modes.
    """

    reserved: int | Unknown
    idle: int | Unknown
    total: int | Unknown
    enabled: str | Unknown
    defrag: str | Unknown

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        facts = [
            check_fact("transparent huge pages", self.enabled, f"{_FOLDER}/enabled"),
            check_fact("THP defrag", self.defrag, f"{_FOLDER}/defrag"),
        ]
        if isinstance(self.reserved, Unknown) or isinstance(self.idle, Unknown):
            return (*facts, check_fact("reserved huge pages", self.reserved, "/proc/meminfo"))
        text = (
            f"{self.reserved >> 20:,} MiB, {self.idle >> 20:,} MiB of it unused"
            if self.reserved
            else "none"
        )
        return (*facts, check_fact("reserved huge pages", text, "/proc/meminfo"))


def inspect(context: CheckContext) -> HugePagesResult:
    """Read /sys and /proc."""
    meminfo = read_meminfo(context)
    size = meminfo_bytes(meminfo, "Hugepagesize")
    counts = [meminfo_bytes(meminfo, name) for name in ("HugePages_Total", "HugePages_Free")]
    reserved, idle = (
        count if isinstance(count, Unknown) else size if isinstance(size, Unknown) else count * size
        for count in counts
    )
    if isinstance(meminfo, dict) and "HugePages_Total" not in meminfo:  # built without huge pages
        reserved = idle = 0
    return HugePagesResult(
        reserved=reserved,
        idle=idle,
        total=meminfo_bytes(meminfo, "MemTotal"),
        enabled=_selected_mode(context, "enabled"),
        defrag=_selected_mode(context, "defrag"),
    )


def _selected_mode(context: CheckContext, name: str) -> str | Unknown:
    content = proc.read_text(context.path(f"{_FOLDER}/{name}"))
    if isinstance(content, proc.ProcessGone):
        return "not in this kernel"
    if isinstance(content, Unknown):
        return content
    match = _SELECTED.search(content)
    return match[1] if match else Unknown(f"{_FOLDER}/{name} has no selected mode")

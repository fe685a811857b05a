"""Resource limits (ulimits) of this process: open files, locked memory, stack, processes."""

from __future__ import annotations

import re

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

PATH = "/proc/self/limits"
_ROW = re.compile(r"(?P<name>Max [a-z ]+?) {2,}(?P<soft>\S+) +(?P<hard>\S+)")


class ResourceLimit(msgspec.Struct, frozen=True):
    """The effective ``soft`` limit, and the ``hard`` limit up to which a process may raise it.

    None is unlimited; memory is in bytes.
    """

    soft: int | None
    hard: int | None


class LimitsResult(CheckResult, frozen=True, kw_only=True):
    """Limits that workers inherit from a launcher. ``rdma``: InfiniBand or RoCE adapters exist.

    They lock memory.
    """

    files: ResourceLimit | Unknown
    locked: ResourceLimit | Unknown
    stack: ResourceLimit | Unknown
    processes: ResourceLimit | Unknown
    rdma: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        named = (
            ("open-file limit (ulimit -n)", self.files, 1, ""),
            ("locked-memory limit (ulimit -l)", self.locked, 1024, " KiB"),
            ("stack limit (ulimit -s)", self.stack, 1024, " KiB"),
            ("process limit (ulimit -u)", self.processes, 1, ""),
        )
        return tuple(
            check_fact(name, _describe_limit(limit, unit, suffix), PATH)
            for name, limit, unit, suffix in named
        )


def _describe_limit(limit: ResourceLimit | Unknown, unit: int, suffix: str) -> str | Unknown:
    if isinstance(limit, Unknown):
        return limit
    soft, hard = (
        "unlimited" if end is None else f"{end // unit}{suffix}" for end in (limit.soft, limit.hard)
    )
    return soft if soft == hard else f"{soft} (hard limit {hard})"


def inspect(context: CheckContext) -> LimitsResult:
    """Read the limits of this process."""
    content = proc.read_text(context.path(PATH))
    rows = (
        {} if isinstance(content, Unknown) else {row["name"]: row for row in _ROW.finditer(content)}
    )

    def limit(name: str) -> ResourceLimit | Unknown:
        if name not in rows:
            return content if isinstance(content, Unknown) else Unknown(f"{PATH} has no {name}")
        soft, hard = (rows[name][end] for end in ("soft", "hard"))
        return ResourceLimit(
            None if soft == "unlimited" else int(soft), None if hard == "unlimited" else int(hard)
        )

    adapters = context.path("/sys/class/infiniband")
    return LimitsResult(
        files=limit("Max open files"),
        locked=limit("Max locked memory"),
        stack=limit("Max stack size"),
        processes=limit("Max processes"),
        rdma=adapters.is_dir() and any(adapters.iterdir()),
    )

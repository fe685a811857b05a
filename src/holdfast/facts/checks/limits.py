"""Limits on what one process may have: open files, locked memory, stack, processes; as this one has them."""

from __future__ import annotations

import re

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

PATH = "/proc/self/limits"
_ROW = re.compile(r"(?P<name>Max [a-z ]+?) {2,}(?P<soft>\S+) +(?P<hard>\S+)")


class Limit(msgspec.Struct, frozen=True):
    """``soft`` holds now and a process may raise it to ``hard``; None is unlimited. In bytes where it is memory."""

    soft: int | None
    hard: int | None


class Limits(Seen, frozen=True, kw_only=True):
    """Launchers pass them on to the workers. ``rdma``: there are InfiniBand or RoCE adapters, which lock memory."""

    files: Limit | Unknown
    locked: Limit | Unknown
    stack: Limit | Unknown
    processes: Limit | Unknown
    rdma: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        named = (("open files", self.files, 1, ""), ("locked memory", self.locked, 1024, " KiB"),
                 ("stack", self.stack, 1024, " KiB"), ("processes", self.processes, 1, ""))  # fmt: skip
        return tuple(fact(name, _said(limit, unit, word), PATH) for name, limit, unit, word in named)


def _said(limit: Limit | Unknown, unit: int, word: str) -> str | Unknown:
    if isinstance(limit, Unknown):
        return limit
    soft, hard = ("unlimited" if end is None else f"{end // unit}{word}" for end in (limit.soft, limit.hard))
    return soft if soft == hard else f"{soft} (at most {hard})"


def look(place: Place) -> Limits:
    """Read the limits of this process."""
    content = proc.text(place.path(PATH))
    rows = {} if isinstance(content, Unknown) else {row["name"]: row for row in _ROW.finditer(content)}

    def limit(name: str) -> Limit | Unknown:
        if name not in rows:
            return content if isinstance(content, Unknown) else Unknown(f"{PATH} has no {name}")
        soft, hard = (rows[name][end] for end in ("soft", "hard"))
        return Limit(None if soft == "unlimited" else int(soft), None if hard == "unlimited" else int(hard))

    adapters = place.path("/sys/class/infiniband")
    return Limits(
        files=limit("Max open files"),
        locked=limit("Max locked memory"),
        stack=limit("Max stack size"),
        processes=limit("Max processes"),
        rdma=adapters.is_dir() and any(adapters.iterdir()),
    )

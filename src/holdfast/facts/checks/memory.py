"""Memory of the host and of the control group in which this process runs, and how much of it is free."""

from __future__ import annotations

from holdfast.facts import cgroups, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

_MEMINFO = "/proc/meminfo"
_GIB = 1 << 30


class Memory(Seen, frozen=True, kw_only=True):
    """In bytes. ``limit`` and ``used`` (without page cache that can go) are the control group's, None without a limit.

    ``promised`` and ``promisable`` count where the kernel refuses to promise more than it has (overcommit mode 2).
    """

    total: int | Unknown
    available: int | Unknown
    limit: int | None = None
    used: int | Unknown | None = None
    kills: int | None = None
    promised: int | None = None
    promisable: int | None = None
    group: str = ""

    @property
    def room(self) -> int | None:
        """What a job can still take here: the lesser of the host's and of the group's; None where it is not known."""
        rooms = [self.available] if isinstance(self.available, int) else []
        if self.limit is not None and isinstance(self.used, int):
            rooms.append(max(0, self.limit - self.used))
        return min(rooms) if rooms else None

    @property
    def whole(self) -> int | None:
        """What there is for this control group."""
        sizes = [size for size in (self.total, self.limit) if isinstance(size, int)]
        return min(sizes) if sizes else None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        told = [fact("memory", f"{_gib(self.total)}, {_gib(self.available)} available", _MEMINFO)]
        if self.limit is not None and self.used is not None:
            told.append(fact("limit of the control group", f"{_gib(self.limit)}, {_gib(self.used)} in use", self.group))
        if self.kills:
            told.append(fact("killed for want of memory so far", self.kills, self.group))
        if self.promised is not None and self.promisable is not None:
            text = f"{_gib(self.promised)} of {_gib(self.promisable)}"
            told.append(fact("promised, and the kernel keeps to it", text, "/proc/sys/vm/overcommit_memory"))
        return tuple(told)


def _gib(size: int | Unknown) -> str:
    return f"unknown ({size.why})" if isinstance(size, Unknown) else f"{size / _GIB:.1f} GiB"


def look(place: Place) -> Memory:
    """Read /proc/meminfo and the control group's files."""
    known = meminfo(place)
    strict = proc.number(place.path("/proc/sys/vm/overcommit_memory")) == 2 and not isinstance(known, Unknown)
    group = cgroups.of("self", "memory", place.path("/proc"), place.path("/sys/fs/cgroup"))
    limit = group if isinstance(group, Unknown) else cgroups.memory_limit(group)
    bound = None if isinstance(limit, Unknown) else limit
    kills = None if isinstance(group, Unknown) else cgroups.kills(group)
    return Memory(
        total=of(known, "MemTotal"),
        available=of(known, "MemAvailable"),
        limit=bound.limit_bytes if bound else None,
        used=bound.used_bytes if bound else None,
        kills=kills if isinstance(kills, int) else None,
        promised=size if strict and isinstance(size := of(known, "Committed_AS"), int) else None,
        promisable=size if strict and isinstance(size := of(known, "CommitLimit"), int) else None,
        group=str(bound.folder) if bound else "" if isinstance(group, Unknown) else str(group.folder),
    )


def meminfo(place: Place) -> dict[str, str] | Unknown:
    """/proc/meminfo by name."""
    return proc.fields(place.path(_MEMINFO))


def of(known: dict[str, str] | Unknown, name: str) -> int | Unknown:
    """One row of it in bytes (or a plain count, where it has no unit)."""
    if isinstance(known, Unknown):
        return known
    words = known.get(name, "").split()
    if not words or not words[0].isdigit():
        return Unknown(f"{_MEMINFO} has no {name}")
    return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)

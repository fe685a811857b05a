"""Memory of the host and of the cgroup of this process, total and free."""

from __future__ import annotations

from holdfast.core.findings import Fact, Unknown
from holdfast.host import cgroups
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

_MEMINFO = "/proc/meminfo"
_GIB = 1 << 30


class MemoryResult(CheckResult, frozen=True, kw_only=True):
    """Sizes in bytes.

    ``limit`` and ``used`` (without reclaimable page cache) are the cgroup's, None without a limit.
    ``committed`` and ``commit_limit`` are set only with strict overcommit accounting
    (overcommit_memory 2). ``kills``: processes that the OOM killer ended in the cgroup.
    """

    total: int | Unknown
    available: int | Unknown
    limit: int | None = None
    used: int | Unknown | None = None
    kills: int | None = None
    committed: int | None = None
    commit_limit: int | None = None
    group: str = ""

    @property
    def available_bytes(self) -> int | None:
        """Memory that a job can still allocate: the smaller of the host's and the cgroup's.

        None if not known.
        """
        candidates = [self.available] if isinstance(self.available, int) else []
        if self.limit is not None and isinstance(self.used, int):
            candidates.append(max(0, self.limit - self.used))
        return min(candidates) if candidates else None

    @property
    def limit_bytes(self) -> int | None:
        """Total memory that this cgroup may use."""
        sizes = [size for size in (self.total, self.limit) if isinstance(size, int)]
        return min(sizes) if sizes else None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        facts = [
            check_fact("memory", f"{_gib(self.total)}, {_gib(self.available)} available", _MEMINFO)
        ]
        if self.limit is not None and self.used is not None:
            facts.append(
                check_fact(
                    "cgroup memory limit",
                    f"{_gib(self.limit)}, {_gib(self.used)} in use",
                    self.group,
                )
            )
        if self.kills:
            facts.append(check_fact("OOM kills in this cgroup", self.kills, self.group))
        if self.committed is not None and self.commit_limit is not None:
            text = f"{_gib(self.committed)} of {_gib(self.commit_limit)}"
            facts.append(
                check_fact(
                    "committed memory (strict overcommit)", text, "/proc/sys/vm/overcommit_memory"
                )
            )
        return tuple(facts)


def _gib(size: int | Unknown) -> str:
    return f"unknown ({size.why})" if isinstance(size, Unknown) else f"{size / _GIB:.1f} GiB"


def inspect(context: CheckContext) -> MemoryResult:
    """Read /proc/meminfo and the cgroup's files."""
    meminfo = read_meminfo(context)
    strict = proc.read_number(
        context.path("/proc/sys/vm/overcommit_memory")
    ) == 2 and not isinstance(meminfo, Unknown)
    group = cgroups.cgroup_of(
        "self", "memory", context.path("/proc"), context.path("/sys/fs/cgroup")
    )
    limit = group if isinstance(group, Unknown) else cgroups.memory_limit(group)
    bound = None if isinstance(limit, Unknown) else limit
    kills = None if isinstance(group, Unknown) else cgroups.memory_kill_count(group)
    return MemoryResult(
        total=meminfo_bytes(meminfo, "MemTotal"),
        available=meminfo_bytes(meminfo, "MemAvailable"),
        limit=bound.limit_bytes if bound else None,
        used=bound.used_bytes if bound else None,
        kills=kills if isinstance(kills, int) else None,
        committed=size
        if strict and isinstance(size := meminfo_bytes(meminfo, "Committed_AS"), int)
        else None,
        commit_limit=size
        if strict and isinstance(size := meminfo_bytes(meminfo, "CommitLimit"), int)
        else None,
        group=str(bound.folder)
        if bound
        else ""
        if isinstance(group, Unknown)
        else str(group.folder),
    )


def read_meminfo(context: CheckContext) -> dict[str, str] | Unknown:
    """Return the fields of /proc/meminfo by name."""
    return proc.read_fields(context.path(_MEMINFO))


def meminfo_bytes(meminfo: dict[str, str] | Unknown, name: str) -> int | Unknown:
    """Return one field of /proc/meminfo in bytes (or a plain count, if it has no unit)."""
    if isinstance(meminfo, Unknown):
        return meminfo
    words = meminfo.get(name, "").split()
    if not words or not words[0].isdigit():
        return Unknown(f"{_MEMINFO} has no {name}")
    return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)

"""NUMA nodes with their CPUs and memory, and which of them this process may use."""

from __future__ import annotations

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.system.processors import parse_cpu_list
from holdfast.host.processes import proc

_FOLDER = "/sys/devices/system/node"
_GIB = 1 << 30


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node; memory in bytes, ``processors`` as a CPU list (``0-3,8``)."""

    number: int
    processors: str
    total: int
    free: int


class NumaResult(CheckResult, frozen=True, kw_only=True):
    """``usable`` and ``memory`` are the CPUs and memory nodes that this process may use.

    None if not known. ``balancing``: kernel.numa_balancing, which migrates pages to the node that
    uses them; ``reclaim``: vm.zone_reclaim_mode.
    """

    nodes: tuple[NumaNode, ...] | Unknown
    usable: str | None = None
    memory: str | None = None
    balancing: int | None = None
    reclaim: int | None = None

    @property
    def usable_nodes(self) -> list[NumaNode]:
        """The nodes on whose CPUs this process may run."""
        usable = set(parse_cpu_list(self.usable or ""))
        nodes = () if isinstance(self.nodes, Unknown) else self.nodes
        return [node for node in nodes if usable & set(parse_cpu_list(node.processors))]

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if isinstance(self.nodes, Unknown):
            return (check_fact("NUMA nodes", self.nodes, _FOLDER),)
        facts = [check_fact("NUMA nodes", len(self.nodes), _FOLDER)]
        for node in self.nodes:
            text = (
                f"CPUs {node.processors or 'none'}, {node.total / _GIB:.1f} GiB, "
                f"{node.free / _GIB:.1f} GiB free"
            )
            facts.append(check_fact(f"node {node.number}", text, f"{_FOLDER}/node{node.number}"))
        if self.usable is not None:
            facts.append(
                check_fact(
                    "this process",
                    f"CPUs {self.usable}, memory nodes {self.memory}",
                    "/proc/self/status",
                )
            )
        if self.balancing is not None:
            origin = "/proc/sys/kernel/numa_balancing"
            facts.append(check_fact("numa_balancing", self.balancing, origin))
        if self.reclaim:
            origin = "/proc/sys/vm/zone_reclaim_mode"
            facts.append(check_fact("zone_reclaim_mode", self.reclaim, origin))
        return tuple(facts)


def inspect(context: CheckContext) -> NumaResult:
    """Read /sys; a kernel without NUMA has no node folder."""
    folder = context.path(_FOLDER)
    if not folder.is_dir():
        if context.path("/sys/devices/system/cpu").is_dir():
            return NumaResult(absent="the kernel has no NUMA support", nodes=())
        return NumaResult(nodes=Unknown(f"{_FOLDER} does not exist"))
    entries = [
        (int(entry.name[4:]), entry)
        for entry in folder.iterdir()
        if entry.name[:4] == "node" and entry.name[4:].isdigit()
    ]
    status = proc.read_fields(context.path("/proc/self/status"))
    known = {} if isinstance(status, Unknown) else status
    balancing, reclaim = (
        proc.read_number(context.path(path))
        for path in ("/proc/sys/kernel/numa_balancing", "/proc/sys/vm/zone_reclaim_mode")
    )
    return NumaResult(
        nodes=tuple(
            NumaNode(
                number=number,
                processors=_read_stripped(entry / "cpulist"),
                total=_meminfo_bytes(entry / "meminfo", "MemTotal"),
                free=_meminfo_bytes(entry / "meminfo", "MemFree"),
            )
            for number, entry in sorted(entries)
        ),
        usable=known.get("Cpus_allowed_list"),
        memory=known.get("Mems_allowed_list"),
        balancing=balancing if isinstance(balancing, int) else None,
        reclaim=reclaim if isinstance(reclaim, int) else None,
    )


def _read_stripped(path: object) -> str:
    content = proc.read_text(str(path))
    return content.strip() if isinstance(content, str) else ""


def _meminfo_bytes(path: object, name: str) -> int:
    """Return a field of a node's meminfo (``Node 0 MemTotal: 24665832 kB``) in bytes, or 0."""
    content = proc.read_text(str(path))
    for line in content.splitlines() if isinstance(content, str) else ():
        words = line.split()
        if len(words) >= 4 and words[2] == f"{name}:":
            return int(words[3]) * 1024
    return 0

"""NUMA: nodes with their processors and memory, and on which of them this process may be."""

from __future__ import annotations

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.processors import numbers
from holdfast.findings import Fact, Unknown

_FOLDER = "/sys/devices/system/node"
_GIB = 1 << 30


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node; memory in bytes, ``processors`` as the kernel writes them."""

    number: int
    processors: str
    total: int
    free: int


class Numa(Seen, frozen=True, kw_only=True):
    """``usable`` and ``memory`` are the processors and nodes that this process may use; None where it is not said.

    ``balancing``: the kernel moves pages after the processes; ``reclaim`` is vm.zone_reclaim_mode.
    """

    nodes: tuple[Node, ...] | Unknown
    usable: str | None = None
    memory: str | None = None
    balancing: int | None = None
    reclaim: int | None = None

    @property
    def reached(self) -> list[Node]:
        """The nodes on whose processors this process may run."""
        mine = set(numbers(self.usable or ""))
        found = () if isinstance(self.nodes, Unknown) else self.nodes
        return [node for node in found if mine & set(numbers(node.processors))]

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if isinstance(self.nodes, Unknown):
            return (fact("NUMA nodes", self.nodes, _FOLDER),)
        told = [fact("NUMA nodes", len(self.nodes), _FOLDER)]
        for node in self.nodes:
            text = (
                f"processors {node.processors or 'none'}, {node.total / _GIB:.1f} GiB, {node.free / _GIB:.1f} GiB free"
            )
            told.append(fact(f"node {node.number}", text, f"{_FOLDER}/node{node.number}"))
        if self.usable is not None:
            told.append(fact("this process", f"processors {self.usable}, memory of {self.memory}", "/proc/self/status"))
        told += [] if self.balancing is None else [fact("balancing", self.balancing, "/proc/sys/kernel/numa_balancing")]
        return (
            *told,
            *((fact("zone reclaim", self.reclaim, "/proc/sys/vm/zone_reclaim_mode"),) if self.reclaim else ()),
        )


def look(place: Place) -> Numa:
    """Read /sys; a kernel without NUMA has no such folder."""
    folder = place.path(_FOLDER)
    if not folder.is_dir():
        if place.path("/sys/devices/system/cpu").is_dir():
            return Numa(absent="the kernel knows no NUMA nodes here", nodes=())
        return Numa(nodes=Unknown(f"{_FOLDER} is not there"))
    found = [
        (int(each.name[4:]), each) for each in folder.iterdir() if each.name[:4] == "node" and each.name[4:].isdigit()
    ]
    status = proc.fields(place.path("/proc/self/status"))
    known = {} if isinstance(status, Unknown) else status
    balancing, reclaim = (
        proc.number(place.path(path)) for path in ("/proc/sys/kernel/numa_balancing", "/proc/sys/vm/zone_reclaim_mode")
    )
    return Numa(
        nodes=tuple(
            Node(number=number, processors=_text(each / "cpulist"), total=_bytes(each / "meminfo", "MemTotal"),
                 free=_bytes(each / "meminfo", "MemFree")) for number, each in sorted(found)
        ),
        usable=known.get("Cpus_allowed_list"), memory=known.get("Mems_allowed_list"),
        balancing=balancing if isinstance(balancing, int) else None,
        reclaim=reclaim if isinstance(reclaim, int) else None,
    )  # fmt: skip


def _text(path: object) -> str:
    content = proc.text(str(path))
    return content.strip() if isinstance(content, str) else ""


def _bytes(path: object, name: str) -> int:
    """``Node 0 MemTotal:  24665832 kB``; nothing of it is nothing there."""
    content = proc.text(str(path))
    for line in content.splitlines() if isinstance(content, str) else ():
        words = line.split()
        if len(words) >= 4 and words[2] == f"{name}:":
            return int(words[3]) * 1024
    return 0

"""What a host is asked before a job: one file a check, which looks at one thing and never judges it.

A module of this folder has a structure of what it saw, a subclass of :class:`Seen`, and ``look(place)``, which returns
one. Its rule has the same name in ``rules/machine/``. A new check is a row in ``CHECKS``, these two files, their tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from holdfast.errors import InternalError, UnknownName
from holdfast.findings import Fact, Unknown

#: The port that torchrun uses where none is named, and those behind it that jobs on one host take.
PORTS = (29500, 29510)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where is looked, and for what job. ``root`` is / but in tests and recordings, which have a tree of their own.

    ``workers``: processes that a launcher will start on this host. ``endpoint``: host and port of the rendezvous.
    ``ports``: first and last that have to be free. ``checkpoints``: folder into which checkpoints will go.
    ``within_s``: for so long the checks are waited for, all of them together.
    """

    root: str = "/"
    environ: dict[str, str] = {}
    workers: int | None = None
    endpoint: tuple[str, int] | None = None
    ports: tuple[int, int] = PORTS
    checkpoints: str | None = None
    within_s: float = 20.0

    def path(self, absolute: str) -> Path:
        """A path of the host, below ``root``."""
        return Path(self.root, absolute.lstrip("/"))


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a check saw. A field that could not be seen is :class:`Unknown`, one that does not apply None.

    ``absent`` says why there is nothing of the kind on this host (no GPU), where that is known and is no fault.
    """

    absent: str = ""

    def facts(self) -> tuple[Fact, ...]:
        """All that was seen with its receipts, the most telling first; without host and time, which the caller adds."""
        raise InternalError(f"{type(self).__name__} tells no facts")


class Check(msgspec.Struct, frozen=True):
    """A row of the table. ``alone``: it may block (a driver, a dead file server, DNS), and has a process of its own."""

    name: str
    about: str
    alone: bool = False
    limit_s: float = 4.0

    @property
    def module(self) -> str:
        """Last part of the names of the modules that look and judge."""
        return self.name.replace("-", "_")

    @property
    def look(self) -> Callable[[Place], Seen]:
        """The function that looks."""
        found: Callable[[Place], Seen] = import_module(f"{__name__}.{self.module}").look
        return found

    @property
    def kind(self) -> type[Seen]:
        """The structure that it returns."""
        found: type[Seen] = get_type_hints(self.look)["return"]
        return found


#: All checks by name, in the order in which they are shown.
CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check("gpus", "NVIDIA GPUs that a job will see: number, order, who else computes on them"),
        Check("gpu-health", "heat, lowered clocks, power, memory errors, PCIe and NVLinks of NVIDIA GPUs"),
        Check("amd-gpus", "AMD GPUs: number, driver, heat, memory errors"),
        Check("kernel-log", "what the kernel's log says of GPUs (Xid), PCIe links and network adapters"),
        Check("cuda", "driver, CUDA, torch and NCCL fit together"),
        Check("pci-paths", "IOMMU and ACS between GPUs and adapters, lanes of adapters"),
        Check("infiniband", "InfiniBand and RoCE ports: state, rate, GIDs, partitions, errors"),
        Check("shared-memory", "size and room of /dev/shm, through which workers of one host talk"),
        Check("interfaces", "network interfaces: up, speed, size of packets, addresses, losses"),
        Check("routes", "routes, and the way that leads to the rendezvous"),
        Check("neighbours", "hosts of the own networks that do not answer"),
        Check("names", "what the own name and the endpoint's mean, and what peers are told"),
        Check("hosts-file", "traps in /etc/hosts"),
        Check("ports", "ports of the rendezvous: free, or who holds them"),
        Check("firewall", "rules of nftables, iptables, ufw and firewalld, as far as they meet a job"),
        Check("limits", "limits on open files, locked memory, stack and processes"),
        Check("memory", "memory of the host and of the control group, and what is free of it"),
        Check("swap", "swap, and whether pages move"),
        Check("processors", "processors that may be used: affinity, quota, load"),
        Check("tasks", "room for processes and threads"),
        Check("numa", "NUMA nodes, and which of them the workers reach"),
        Check("huge-pages", "huge pages: set aside, or made while programs wait"),
        Check("container", "what a container, or hardening, keeps from a job"),
        Check("disk", "the folder of checkpoints: room, and the speed of writing", alone=True),
        Check("checkpoints", "checkpoints that lie there already: whole, damaged, unfinished", alone=True),
        Check("clock", "the clock: whether it is kept right, and its source"),
        Check("software", "versions of Python and all packages, and the code, as fingerprints"),
    )
}  # fmt: skip


def chosen(names: tuple[str, ...]) -> tuple[Check, ...]:
    """The checks called so; all where there is no name. Raises UnknownName."""
    for name in names:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
    return tuple(check for check in CHECKS.values() if not names or check.name in names)


def fact(name: str, value: object, origin: str) -> Fact:
    """``name: value``, or ``name: unknown (why)``, and where it was read."""
    return Fact(text=f"{name}: {f'unknown ({value.why})' if isinstance(value, Unknown) else value}", origin=origin)


def unknowns(seen: Any) -> tuple[str, ...]:
    """Why parts of it could not be seen, in the order of the fields, those of structures in it too."""
    if isinstance(seen, Unknown):
        return (seen.why,)
    if isinstance(seen, msgspec.Struct):
        return tuple(why for name in seen.__struct_fields__ for why in unknowns(getattr(seen, name)))
    if isinstance(seen, tuple):
        return tuple(why for each in seen for why in unknowns(each))
    return ()

"""Checks of one host before a job: one module per check, which collects facts and judges nothing.

A module of this folder has a subclass of :class:`CheckResult` and a function ``inspect(context)``
that returns one. Its rule has the same name in ``host/check_rules/``. A new check is a row in
``CHECKS``, these two files and their tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from holdfast.core.errors import InternalError, UnknownName
from holdfast.core.findings import Fact, Unknown

#: torchrun's default port, and the last of the ports behind it that further jobs on one host use.
DEFAULT_PORTS = (29500, 29510)


class CheckContext(msgspec.Struct, frozen=True, kw_only=True):
    """What to inspect, and for which job. ``root`` is / except in tests and recorded trees.

    ``workers``: processes that a launcher will start on this host. ``endpoint``: host and port of
    the rendezvous. ``ports``: first and last port that must be free. ``checkpoints``: the
    checkpoint folder. ``within_s``: time limit for all checks together.
    """

    root: str = "/"
    environ: dict[str, str] = {}
    workers: int | None = None
    endpoint: tuple[str, int] | None = None
    ports: tuple[int, int] = DEFAULT_PORTS
    checkpoints: str | None = None
    within_s: float = 20.0

    def path(self, absolute: str) -> Path:
        """Return a path of the host, below ``root``."""
        return Path(self.root, absolute.lstrip("/"))


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a check observed. An unreadable field is :class:`Unknown`.

    One that does not apply is None. ``absent`` says why this host has nothing of the kind (no
    GPU), where that is known and no fault.
    """

    absent: str = ""

    def facts(self) -> tuple[Fact, ...]:
        """Return all observations with their origins, the most important first.

        The caller adds host and time.
        """
        raise InternalError(f"{type(self).__name__} has no facts()")


#: Checks whose module has another name than the check.
_MODULES = {"names": "host_names", "tasks": "process_limits"}


class Check(msgspec.Struct, frozen=True):
    """A row of the table.

    ``in_subprocess``: the check may block (a driver, an unreachable file server, DNS), so that it
    runs in a separate process with a limit of ``limit_s`` seconds.
    """

    name: str
    folder: str
    description: str
    in_subprocess: bool = False
    limit_s: float = 4.0

    @property
    def module(self) -> str:
        """Path of the sensor below ``host.checks``.

        The rule has the same path below ``host.check_rules``.
        """
        return f"{self.folder}.{_MODULES.get(self.name, self.name.replace('-', '_'))}"

    @property
    def run(self) -> Callable[[CheckContext], CheckResult]:
        """The module's function ``inspect``."""
        inspect: Callable[[CheckContext], CheckResult] = import_module(
            f"{__name__}.{self.module}"
        ).inspect
        return inspect

    @property
    def result_type(self) -> type[CheckResult]:
        """The type that ``run`` returns."""
        returned: type[CheckResult] = get_type_hints(self.run)["return"]
        return returned


#: All checks by name, in display order.
CHECKS: Mapping[str, Check] = {
    check.name: check
    for check in (
        Check("gpus", "devices", "NVIDIA GPUs visible to a job: count, order, other users"),
        Check(
            "gpu-health",
            "devices",
            "NVIDIA GPUs: temperature, throttling, power cap, ECC errors, PCIe and NVLink",
        ),
        Check("amd-gpus", "devices", "AMD GPUs: count, driver, temperature, memory errors"),
        Check("kernel-log", "system", "kernel log: GPU errors (Xid), PCIe links, network adapters"),
        Check("cuda", "devices", "compatibility of driver, CUDA, torch and NCCL"),
        Check(
            "pci-paths",
            "devices",
            "IOMMU and ACS between GPUs and adapters, PCIe lanes of adapters",
        ),
        Check(
            "infiniband",
            "devices",
            "InfiniBand and RoCE ports: state, rate, GIDs, partitions, errors",
        ),
        Check("shared-memory", "system", "size and free space of /dev/shm"),
        Check(
            "interfaces",
            "network",
            "network interfaces: state, speed, MTU, addresses, errors and drops",
        ),
        Check("routes", "network", "routing table, and the route to the rendezvous"),
        Check("neighbours", "network", "neighbour (ARP) table: hosts that do not answer"),
        Check("tcp", "network", "TCP buffers, backlog, and the table of tracked connections"),
        Check("names", "network", "resolution of this host's name and of the endpoint"),
        Check("hosts-file", "network", "harmful lines in /etc/hosts"),
        Check("ports", "network", "rendezvous ports: free, or which process holds them"),
        Check(
            "firewall",
            "network",
            "rules of nftables, iptables, ufw and firewalld that affect a job",
        ),
        Check("limits", "system", "ulimits: open files, locked memory, stack, processes"),
        Check("memory", "system", "memory of the host and of the cgroup, total and free"),
        Check("swap", "system", "swap size and use, memory pressure"),
        Check("processors", "system", "usable CPUs: affinity, cgroup quota, load"),
        Check("tasks", "system", "process and thread limits of the kernel and the cgroup"),
        Check("numa", "devices", "NUMA nodes, and which of them this process may use"),
        Check("huge-pages", "system", "huge pages: reserved, and transparent (THP) mode"),
        Check("container", "system", "container restrictions: capabilities, seccomp, ptrace"),
        Check(
            "disk",
            "system",
            "checkpoint folder: free space, writability, write speed",
            in_subprocess=True,
        ),
        Check(
            "checkpoints",
            "system",
            "existing checkpoints: complete, damaged, unfinished",
            in_subprocess=True,
        ),
        Check("clock", "system", "clock synchronization and clock source"),
        Check("software", "system", "versions of Python and all packages; code fingerprint"),
    )
}


def select_checks(names: tuple[str, ...]) -> tuple[Check, ...]:
    """Return the named checks, or all of them if ``names`` is empty. Raises UnknownName."""
    for name in names:
        if name not in CHECKS:
            raise UnknownName("check", name, CHECKS)
    return tuple(check for check in CHECKS.values() if not names or check.name in names)


def check_fact(name: str, value: object, origin: str) -> Fact:
    """Return the fact ``name: value``, or ``name: unknown (why)``, with its origin."""
    return Fact(
        text=f"{name}: {f'unknown ({value.why})' if isinstance(value, Unknown) else value}",
        origin=origin,
    )


def unknown_reasons(value: Any) -> tuple[str, ...]:
    """Return the reasons of all Unknown values of a result, nested ones too, in field order."""
    if isinstance(value, Unknown):
        return (value.why,)
    if isinstance(value, msgspec.Struct):
        return tuple(
            why for name in value.__struct_fields__ for why in unknown_reasons(getattr(value, name))
        )
    if isinstance(value, tuple):
        return tuple(why for item in value for why in unknown_reasons(item))
    return ()

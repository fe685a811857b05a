"""Recommends variables for this host and job, each with a reason.

None that torch or NCCL choose better themselves. The interface is that of the route to the
rendezvous, and is not recommended without one: the default route often uses another interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.settings import preset_readings
from holdfast.core.variable_table import parse_release, variable_entries
from holdfast.host.checks.devices.infiniband import Port
from holdfast.host.checks.network.interfaces import NetworkInterface
from holdfast.host.checks.network.routes import RouteLookup

_FAST_MBIT = 100_000
#: Since this release NCCL finds the GID index of the RoCE v2 address itself.
_AUTOMATIC_GID = (2, 21)


class JobProfile(StrEnum):
    """The network of the ranks, or ``DEBUG`` for debugging."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    ETHERNET = "ethernet"
    SINGLE_NODE = "single-node"
    DEBUG = "debug"


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the host and the job.

    ``way``: the route to the rendezvous, None if there is no rendezvous. ``workers``: processes on
    this host; ``nodes``: hosts of the job; None if not known. Versions may be "".
    """

    environ: dict[str, str] = {}
    gpus: int = 0
    cores: int = 1
    workers: int | None = None
    nodes: int | None = None
    endpoint: str = ""
    route: RouteLookup | None = None
    interfaces: tuple[NetworkInterface, ...] = ()
    ports: tuple[Port, ...] = ()
    nccl: str = ""
    torch: str = ""
    #: The advice is for other hosts with GPUs, because this one has none.
    is_for_target: bool = False

    @property
    def uses_nccl(self) -> bool:
        """Return whether the ranks use NCCL: here, or on the hosts that the advice is for."""
        return bool(self.gpus) or self.is_for_target


class Advice(msgspec.Struct, frozen=True):
    """One variable to set, and the reason."""

    name: str
    value: str
    why: str


class RecommendedVariable(msgspec.Struct, frozen=True):
    """The variables for a profile, why it was chosen, and deliberate omissions with reasons."""

    profile: JobProfile
    chosen_because: str
    variables: tuple[Advice, ...]
    left_out: tuple[str, ...]


def recommend(
    machine: MachineFacts, wanted: JobProfile | None = None, *, here_only: bool = False
) -> RecommendedVariable:
    """Return the recommended variables; those that the user has set are not changed.

    A profile that is ``wanted`` on a host without GPUs is for other hosts, unless ``here_only``.
    """
    profile, because = (wanted, "it was requested") if wanted else _detect_profile(machine)
    proposed: list[Advice] = []
    left_out: list[str] = []
    if wanted is not None and not machine.gpus and not here_only:
        machine = replace(machine, is_for_target=True)
        because += "; this host has no GPU, so NCCL's variables are for the hosts of the job"
    if profile is not JobProfile.SINGLE_NODE:
        _add(_recommend_interfaces(machine, profile), proposed, left_out)
    if profile in (JobProfile.INFINIBAND, JobProfile.ROCE):
        _add(_recommend_adapters(machine, profile), proposed, left_out)
    if profile is JobProfile.ETHERNET:
        _add(_recommend_sockets(machine), proposed, left_out)
    proposed += _recommend_debugging(machine) if profile is JobProfile.DEBUG else ()
    names = {advice.name for advice in proposed}
    proposed += [advice for advice in _recommend_basics(machine) if advice.name not in names]
    variables = [advice for advice in proposed if not machine.environ.get(advice.name)]
    left_out += [
        _describe_user_value(advice, machine.environ[advice.name])
        for advice in proposed
        if advice not in variables
    ]
    return RecommendedVariable(profile, because, tuple(variables), tuple(left_out))


def _add(items: Iterator[Advice | str], proposed: list[Advice], left_out: list[str]) -> None:
    for item in items:
        if isinstance(item, Advice):
            proposed.append(item)
        else:
            left_out.append(item)


def _describe_user_value(advice: Advice, value: str) -> str:
    if value.lstrip("=") == advice.value.lstrip("="):
        return f"{advice.name}={value}: already set"
    return (
        f"{advice.name}={value}: already set and not changed; recommended: {advice.value} "
        f"({advice.why})"
    )


def _detect_profile(machine: MachineFacts) -> tuple[JobProfile, str]:
    if machine.nodes == 1:
        return JobProfile.SINGLE_NODE, "the job has one host"
    active = [port for port in machine.ports if port.is_active]
    for layer, profile in (("InfiniBand", JobProfile.INFINIBAND), ("Ethernet", JobProfile.ROCE)):
        names = [port.name for port in active if port.layer == layer]
        if names and machine.gpus:
            return profile, f"RDMA ports with the link layer {layer} are active: {', '.join(names)}"
    if machine.route is None and machine.nodes is None:
        return (
            JobProfile.SINGLE_NODE,
            "no rendezvous and no other host is named (--rdzv-endpoint, --nnodes)",
        )
    if active:
        return (
            JobProfile.ETHERNET,
            "the host has RDMA ports but no GPU that could use them, so that gloo uses sockets",
        )
    return JobProfile.ETHERNET, "the host has no active RDMA port"


def _recommend_interfaces(machine: MachineFacts, profile: JobProfile) -> Iterator[Advice | str]:
    names = (
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME" if machine.uses_nccl else "GLOO_SOCKET_IFNAME"
    )
    route = machine.route
    if route is None:
        if profile is not JobProfile.DEBUG:
            yield f"{names}: needs the route to the rendezvous (use --rdzv-endpoint)"
        return
    if route.refused or not route.interface:
        why = route.refused or "its interface is unknown"
        yield f"{names}: no route to {machine.endpoint} ({why})"
        return
    if route.interface == "lo":
        yield (
            f"{names}: {machine.endpoint} is {route.address}, a loopback address that no other "
            f"host can reach"
        )
        return
    reason = f"packets to {machine.endpoint} use this interface"
    if route.local:
        reason = f"{machine.endpoint} is this host's address on it"
    yield Advice(
        "GLOO_SOCKET_IFNAME",
        route.interface,
        f"{reason}; by default gloo uses the address of the host name, often 127.0.1.1",
    )
    if machine.uses_nccl:
        yield Advice(
            "NCCL_SOCKET_IFNAME",
            f"={route.interface}",
            f"{reason}; by default NCCL uses ib* first, then any other interface; = matches "
            "exactly this name (without it, eth1 matches eth10 too)",
        )


def _recommend_adapters(machine: MachineFacts, profile: JobProfile) -> Iterator[Advice | str]:
    layer = "InfiniBand" if profile is JobProfile.INFINIBAND else "Ethernet"
    active = [port for port in machine.ports if port.is_active]
    matching = [port for port in active if port.layer == layer]
    if not matching:
        yield f"NCCL_IB_HCA: this host has no active RDMA port with the link layer {layer}"
        return
    fastest = max(port.rate_gbits or 0 for port in matching)
    chosen = [port for port in matching if (port.rate_gbits or 0) == fastest]
    others = [port for port in active if port not in chosen]
    if others:
        slower = ", ".join(
            f"{port.name} ({port.layer}, {port.rate_gbits or 0:g} Gbit/s)" for port in others
        )
        yield Advice(
            "NCCL_IB_HCA",
            "=" + ",".join(port.name for port in chosen),
            f"the fastest ports with the link layer {layer}; without it NCCL would use {slower} "
            f"too",
        )
    else:
        yield f"NCCL_IB_HCA: all {len(chosen)} active ports are equal; NCCL uses all by default"
    if profile is JobProfile.ROCE:
        yield from _recommend_roce(machine, chosen)


def _recommend_roce(machine: MachineFacts, ports: Sequence[Port]) -> Iterator[Advice | str]:
    indices = {_roce_v2_index(port) for port in ports}
    release = parse_release(machine.nccl)
    needs_index = release and release < _AUTOMATIC_GID and len(indices) == 1
    if needs_index and (index := indices.pop()) is not None:
        yield Advice(
            "NCCL_IB_GID_INDEX",
            str(index),
            f"GID index of the RoCE v2 address; NCCL {machine.nccl} uses index 0, NCCL 2.21 and "
            "newer finds it automatically",
        )
    else:
        yield "NCCL_IB_GID_INDEX: NCCL finds the index of the RoCE v2 address itself since 2.21"
    yield (
        "NCCL_IB_TC: depends on the traffic class that your switches treat as lossless; ask your "
        "network administrators (106 is common but not a standard)"
    )


def _roce_v2_index(port: Port) -> int | None:
    """Return the index of the RoCE v2 GID with an IPv4 address, which is routable.

    Else of the first RoCE v2 GID.
    """
    gids = [gid for gid in port.gids if gid.kind == "RoCE v2"]
    return min(
        (gid.index for gid in gids if gid.is_ipv4),
        default=min((gid.index for gid in gids), default=None),
    )


def _recommend_sockets(machine: MachineFacts) -> Iterator[Advice | str]:
    if (any(port.is_active for port in machine.ports) or machine.is_for_target) and (
        machine.uses_nccl
    ):
        yield Advice(
            "NCCL_IB_DISABLE",
            "1",
            "this profile uses sockets, and NCCL would use RDMA ports of the host",
        )
    name = machine.route.interface if machine.route else None
    speed = next(
        (interface.speed_mbit for interface in machine.interfaces if interface.name == name), None
    )
    if machine.uses_nccl and speed and speed >= _FAST_MBIT:
        why = (
            f"{name} has {speed // 1000} Gbit/s, which one connection does not saturate (NVIDIA's "
            "guide: 4 from 100 Gbit/s on)"
        )
        yield Advice("NCCL_SOCKET_NTHREADS", "4", why)
        yield Advice("NCCL_NSOCKS_PERTHREAD", "4", why)


def _recommend_debugging(machine: MachineFacts) -> Iterator[Advice]:
    if machine.uses_nccl:
        yield Advice(
            "NCCL_DEBUG",
            "INFO",
            "NCCL logs the network, interfaces and rings that it uses, and the variables that it "
            "read",
        )
        yield Advice(
            "NCCL_DEBUG_SUBSYS",
            "INIT,ENV,NET,GRAPH",
            "the useful subsystems, without a line for every call",
        )
        yield Advice(
            "NCCL_DEBUG_FILE",
            "nccl.%h.%p.log",
            "one file per process, so that ranks do not overwrite each other's log",
        )
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            yield Advice(
                name, "20000", "a long history shows where ranks diverged, not only where they are"
            )
        yield Advice(
            "TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "writes that history to a file when a call times out"
        )
    yield Advice(
        "TORCH_CPP_LOG_LEVEL", "INFO", "by default torch's C++ code only logs warnings and errors"
    )
    yield Advice(
        "TORCH_DISTRIBUTED_DEBUG",
        "DETAIL",
        "reports ranks that call different collectives at once; it makes every call several times "
        "slower, so remove it after debugging",
    )
    yield Advice("TORCH_SHOW_CPP_STACKTRACES", "1", "C++ errors include a stack trace")


def _recommend_basics(machine: MachineFacts) -> Iterator[Advice]:
    """Recommend the preset ``basic`` of `holdfast run`, without defaults of the installed torch."""
    workers = machine.workers or machine.gpus or 1
    torch = parse_release(machine.torch)
    for reading in preset_readings(
        "basic", workers=workers, cores=machine.cores, environ={}, torch=torch
    ):
        name, value = reading.name, str(reading.value)
        if name == "OMP_NUM_THREADS":
            if workers > 1 and value != "1":  # torchrun sets 1 by default
                yield Advice(
                    name, value, f"{machine.cores} cores for {workers} workers; {reading.why}"
                )
        elif machine.uses_nccl and not _is_default(name, value, machine):
            yield Advice(name, value, reading.why)


def _is_default(name: str, value: str, machine: MachineFacts) -> bool:
    """Return whether this value is the default of the installed release."""
    row = variable_entries()[name]
    return row.default == value and parse_release(machine.torch) >= (2, 11)


def set_by_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment for which there may be recommendations."""
    return {name: value for name, value in environ.items() if value and name in variable_entries()}

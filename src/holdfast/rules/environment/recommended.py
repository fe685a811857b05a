"""Which variables fit this host and this job, each with its reason; nothing that torch or NCCL choose better.

The interface is the one of the route to the rendezvous, and is left open where that is not known: the way to the
internet is often another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast.facts.checks.infiniband import Port
from holdfast.facts.checks.interfaces import Interface
from holdfast.facts.checks.routes import Way
from holdfast.settings import preset_readings
from holdfast.variables import release, table

_FAST_MBIT = 100_000
#: From this release on NCCL finds the row of the RoCE address by itself.
_FINDS_GID = (2, 21)


class Profile(StrEnum):
    """What the ranks talk over, or ``DEBUG``: a search for a fault."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    ETHERNET = "ethernet"
    SINGLE_NODE = "single-node"
    DEBUG = "debug"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the host and is known of the job. ``way`` is None where no rendezvous was named.

    ``workers``: processes that will run here, ``nodes`` hosts of the job, None where not known; versions may be "".
    """

    environ: dict[str, str] = {}
    gpus: int = 0
    cores: int = 1
    workers: int | None = None
    nodes: int | None = None
    endpoint: str = ""
    way: Way | None = None
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[Port, ...] = ()
    nccl: str = ""
    torch: str = ""


class Advice(msgspec.Struct, frozen=True):
    """One variable to set, and why."""

    name: str
    value: str
    why: str


class Recommended(msgspec.Struct, frozen=True):
    """The variables for a profile, why it was chosen, and what was left out on purpose with the reason."""

    profile: Profile
    chosen_because: str
    variables: tuple[Advice, ...]
    left_out: tuple[str, ...]


def recommend(machine: Machine, wanted: Profile | None = None) -> Recommended:
    """What fits; variables that the user has set already stay as they are."""
    profile, because = (wanted, "you asked for it") if wanted else _profile(machine)
    proposed: list[Advice] = []
    left_out: list[str] = []
    if profile is not Profile.SINGLE_NODE:
        _sort(_interfaces(machine, profile), proposed, left_out)
    if profile in (Profile.INFINIBAND, Profile.ROCE):
        _sort(_adapters(machine, profile), proposed, left_out)
    if profile is Profile.ETHERNET:
        _sort(_sockets(machine), proposed, left_out)
    proposed += _debug(machine) if profile is Profile.DEBUG else ()
    taken = {advice.name for advice in proposed}
    proposed += [advice for advice in _always(machine) if advice.name not in taken]
    variables = [advice for advice in proposed if not machine.environ.get(advice.name)]
    left_out += [_stays(advice, machine.environ[advice.name]) for advice in proposed if advice not in variables]
    return Recommended(profile, because, tuple(variables), tuple(left_out))


def _sort(parts: Iterator[Advice | str], proposed: list[Advice], left_out: list[str]) -> None:
    for part in parts:
        if isinstance(part, Advice):
            proposed.append(part)
        else:
            left_out.append(part)


def _stays(advice: Advice, value: str) -> str:
    if value.lstrip("=") == advice.value.lstrip("="):
        return f"{advice.name}={value}: you have set it so already"
    return f"{advice.name}={value}: you have set it, and it stays; {advice.value} was fitting ({advice.why})"


def _profile(machine: Machine) -> tuple[Profile, str]:
    if machine.nodes == 1:
        return Profile.SINGLE_NODE, "the job has one host"
    active = [port for port in machine.ports if port.is_active]
    for layer, profile in (("InfiniBand", Profile.INFINIBAND), ("Ethernet", Profile.ROCE)):
        here = [port.name for port in active if port.layer == layer]
        if here and machine.gpus:
            return profile, f"RDMA ports with the link layer {layer} are active: {', '.join(here)}"
    if machine.way is None and machine.nodes is None:
        return Profile.SINGLE_NODE, "no rendezvous is named and no other host is known of (--rdzv-endpoint, --nnodes)"
    if active:
        return Profile.ETHERNET, "the host has RDMA ports and no GPU that could use them, so that gloo's sockets count"
    return Profile.ETHERNET, "the host has no active RDMA port"


def _interfaces(machine: Machine, profile: Profile) -> Iterator[Advice | str]:
    names = "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME" if machine.gpus else "GLOO_SOCKET_IFNAME"
    way = machine.way
    if way is None:
        if profile is not Profile.DEBUG:
            yield (f"{names}: the interface is that of the route to the rendezvous, which is not known: name it with "
                   "--rdzv-endpoint")  # fmt: skip
        return
    if way.refused or not way.interface:
        yield f"{names}: there is no way to {machine.endpoint} ({way.refused or 'its interface is not seen'})"
        return
    if way.interface == "lo":
        yield f"{names}: {machine.endpoint} is {way.address}, this host itself, which no other host can reach"
        return
    told = f"packets to {machine.endpoint} leave through it"
    if way.local:
        told = f"{machine.endpoint} is this host's address on it"
    yield Advice("GLOO_SOCKET_IFNAME", way.interface, f"{told}; else gloo takes the address of the host's own name, "
                                                      f"which "
                 "is often 127.0.1.1")  # fmt: skip
    if machine.gpus:
        yield Advice("NCCL_SOCKET_IFNAME", f"={way.interface}", f"{told}; else NCCL takes ib* first, then whatever "
                                                                f"comes; "
                     "= is for this name alone and not eth1, eth10 …")  # fmt: skip


def _adapters(machine: Machine, profile: Profile) -> Iterator[Advice | str]:
    layer = "InfiniBand" if profile is Profile.INFINIBAND else "Ethernet"
    active = [port for port in machine.ports if port.is_active]
    fitting = [port for port in active if port.layer == layer]
    if not fitting:
        yield f"NCCL_IB_HCA: no RDMA port of this host is active with the link layer {layer}"
        return
    fastest = max(port.rate_gbits or 0 for port in fitting)
    chosen = [port for port in fitting if (port.rate_gbits or 0) == fastest]
    others = [port for port in active if port not in chosen]
    if others:
        told = ", ".join(f"{port.name} ({port.layer}, {port.rate_gbits or 0:g} Gbit/s)" for port in others)
        yield Advice("NCCL_IB_HCA", "=" + ",".join(port.name for port in chosen), f"the fastest of {layer}; without "
                     f"it NCCL would use {told} too")  # fmt: skip
    else:
        yield f"NCCL_IB_HCA: all {len(chosen)} active ports are alike, and NCCL takes all of them by itself"
    if profile is Profile.ROCE:
        yield from _roce(machine, chosen)


def _roce(machine: Machine, chosen: Sequence[Port]) -> Iterator[Advice | str]:
    rows = {_row(port) for port in chosen}
    here = release(machine.nccl)
    if here and here < _FINDS_GID and len(rows) == 1 and (row := rows.pop()) is not None:
        yield Advice("NCCL_IB_GID_INDEX", str(row), f"the row of the RoCE v2 address; NCCL {machine.nccl} takes row "
                                                    f"0, from "
                     "2.21 on it finds it by itself")  # fmt: skip
    else:
        yield "NCCL_IB_GID_INDEX: NCCL finds the row of the RoCE v2 address by itself since 2.21"
    yield ("NCCL_IB_TC: the traffic class that your switches treat as lossless is theirs to say; ask who runs the "
           "network (106 is common and no standard)")  # fmt: skip


def _row(port: Port) -> int | None:
    """That of RoCE v2 with an IPv4 address, which routers pass on; else the first of RoCE v2."""
    rows = [gid for gid in port.gids if gid.kind == "RoCE v2"]
    return min((gid.index for gid in rows if gid.is_ipv4), default=min((gid.index for gid in rows), default=None))


def _sockets(machine: Machine) -> Iterator[Advice | str]:
    if any(port.is_active for port in machine.ports) and machine.gpus:
        yield Advice(
            "NCCL_IB_DISABLE", "1", "this profile is for sockets, and NCCL would take the RDMA ports of the host"
        )
    name = machine.way.interface if machine.way else None
    speed = next((each.speed_mbit for each in machine.interfaces if each.name == name), None)
    if machine.gpus and speed and speed >= _FAST_MBIT:
        why = f"{name} has {speed // 1000} Gbit/s, which one connection does not fill (NVIDIA's guide: 4 from 100 on)"
        yield Advice("NCCL_SOCKET_NTHREADS", "4", why)
        yield Advice("NCCL_NSOCKS_PERTHREAD", "4", why)


def _debug(machine: Machine) -> Iterator[Advice]:
    if machine.gpus:
        yield Advice(
            "NCCL_DEBUG", "INFO", "NCCL says which network, interfaces and rings it takes, and which variables it read"
        )
        yield Advice("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,GRAPH", "what is worth reading, without a line for every call")
        yield Advice(
            "NCCL_DEBUG_FILE", "nccl.%h.%p.log", "a file a process, so that ranks do not write over each other"
        )
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            yield Advice(name, "20000", "a long history shows where ranks parted, not only where they stand")
        yield Advice("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a call that times out leaves that history in a file")
    yield Advice("TORCH_CPP_LOG_LEVEL", "INFO", "without it torch's C++ says nothing below a warning")
    yield Advice("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "ranks that call different things are told at once; it makes "
                 "every call several times dearer, so take it out again")  # fmt: skip
    yield Advice("TORCH_SHOW_CPP_STACKTRACES", "1", "errors of C++ say where they come from")


def _always(machine: Machine) -> Iterator[Advice]:
    """What the preset ``basic`` of `holdfast run` sets, without what the installed torch does by itself."""
    workers = machine.workers or machine.gpus or 1
    for reading in preset_readings("basic", workers=workers, cores=machine.cores, environ={}):
        name, value = reading.name, str(reading.value)
        if name == "OMP_NUM_THREADS":
            if workers > 1 and value != "1":  # torchrun sets 1 by itself
                yield Advice(name, value, f"{machine.cores} cores for {workers} workers; {reading.why}")
        elif machine.gpus and not _by_itself(name, value, machine):
            yield Advice(name, value, reading.why)


def _by_itself(name: str, value: str, machine: Machine) -> bool:
    """The newest releases have this default, and one of them is installed."""
    row = table()[name]
    return row.default == value and release(machine.torch) >= (2, 11)


def user_set(environ: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment that a recommendation could be about."""
    return {name: value for name, value in environ.items() if value and name in table()}

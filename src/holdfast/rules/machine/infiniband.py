"""Will NCCL find the ports that it is to use, and will they carry what they should?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.infiniband import InfiniBand, Port, told
from holdfast.findings import Fact, Finding, Level, finding
from holdfast.rules.causes import by_name

#: A link of an adapter for training has four lanes; fewer is a bad contact or cable.
_LANES = 4
#: RoCE carries its largest packet, 4,096 bytes, only over an MTU of 4,200 or more.
_ROCE_MTU = 4200
_FULL_MEMBER = 0x8000
#: Counters whose growth means a bad link, and not merely a busy network.
_BAD_LINK = ("symbol_error", "link_error_recovery", "link_downed", "local_link_integrity_errors", "port_rcv_errors")


def judge(seen: InfiniBand, place: Place) -> Iterator[Finding]:
    """The variables that name ports first, then each port."""
    chosen = _chosen(seen.ports, place.environ.get("NCCL_IB_HCA"))
    disabled = place.environ.get("NCCL_IB_DISABLE") == "1"
    named = place.environ.get("NCCL_IB_HCA")
    if named and not chosen and not disabled:
        yield finding(
            by_name("ib-error"),
            f"NCCL_IB_HCA={named} fits no adapter of this host "
            f"({', '.join(port.name for port in seen.ports)}): NCCL will use sockets, or fail",
            evidence=seen.facts(),
        )
    if not seen.openable and not disabled:
        yield finding(
            by_name("ib-error"),
            "there are RDMA adapters, and /dev/infiniband has nothing to open them by: "
            "a container that was started without its devices",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.9,
        )
    yield from _gid_index([port for port in chosen if port.is_active and port.layer == "Ethernet"], place)
    for port in chosen:
        yield from _port(port, chosen, place)


def _chosen(ports: Sequence[Port], named: str | None) -> tuple[Port, ...]:
    """What NCCL_IB_HCA leaves: prefixes of names (exact after =), all others after ^, a port behind a colon."""
    if not named:
        return tuple(ports)
    text = named.strip()
    inverted, text = text.startswith("^"), text.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    wishes = [wish.strip().partition(":") for wish in text.split(",") if wish.strip()]

    def fits(port: Port) -> bool:
        return any(
            (port.device == name if exact else port.device.startswith(name)) and number in ("", str(port.number))
            for name, _, number in wishes
        )

    return tuple(port for port in ports if fits(port) != inverted)


def _port(port: Port, ports: Sequence[Port], place: Place) -> Iterator[Finding]:
    cause, evidence = by_name("ib-port-degraded"), (told(port),)
    if not port.is_active:
        yield from _down(port, ports, evidence)
        return
    fastest = max((other.rate_gbits or 0 for other in ports if other.layer == port.layer), default=0)
    if port.lanes is not None and port.lanes < _LANES and (port.rate_gbits or 0) < fastest:
        yield finding(
            cause,
            f"{port.name} runs on {port.lanes} of {_LANES} lanes, at {port.rate_gbits:g} Gbit/s",
            level=Level.WARNING,
            evidence=evidence,
        )
    elif port.rate_gbits is not None and port.rate_gbits < fastest:
        yield finding(
            cause,
            f"{port.name} runs at {port.rate_gbits:g} Gbit/s, other ports of this host at {fastest:g}",
            level=Level.NOTE,
            evidence=evidence,
            confidence=0.6,
        )
    bad = {name: count for name, count in port.errors.items() if name in _BAD_LINK}
    if bad:
        counted = ", ".join(f"{name} {count}" for name, count in bad.items())
        yield finding(
            cause,
            f"{port.name} has counted {counted} since its driver was loaded",
            level=Level.NOTE,
            evidence=evidence,
            confidence=0.5,
        )
    yield from (_roce(port, evidence) if port.layer == "Ethernet" else _partition(port, place, evidence))


def _down(port: Port, ports: Sequence[Port], evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    """A port that nobody plugged in is no fault while another one works."""
    plugged = port.physical in ("LinkUp", "LinkErrorRecovery")
    others = any(other.is_active for other in ports)
    waits = port.layer == "InfiniBand" and port.state in ("INIT", "ARMED")
    why = ": its cable is fine, and no subnet manager has set it up" if waits else ""
    if plugged or not others:
        yield finding(
            by_name("ib-port-degraded"),
            f"{port.name} is {port.state or 'in no known state'}{why}; NCCL "
            f"leaves it out{'' if others else ', and has no other'}",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )


def _gid_index(ports: Sequence[Port], place: Place) -> Iterator[Finding]:
    """The index is one for all ports; on each of them it has to be an address of RoCE v2."""
    index = place.environ.get("NCCL_IB_GID_INDEX", "")
    if not _is_index(index):
        return
    kinds = [(port, next((gid.kind for gid in port.gids if gid.index == int(index)), "")) for port in ports]
    wrong = [(port, kind) for port, kind in kinds if "v2" not in kind and any(gid.is_second for gid in port.gids)]
    if wrong:
        first, kind = wrong[0]
        fitting = ", ".join(str(gid.index) for gid in first.gids if gid.is_second)
        what = f"an address of {kind}" if kind else "an empty place"
        where = ", ".join(port.name for port, _ in wrong)
        yield finding(
            by_name("ib-error"),
            f"NCCL_IB_GID_INDEX={index} is {what} on {where}; RoCE v2 is at {fitting}",
            evidence=tuple(
                fact(f"{port.name} GID {gid.index}", f"{gid.address} {gid.kind}", "gid_attrs")
                for port, _ in wrong
                for gid in port.gids
            ),
        )


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _roce(port: Port, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    if not any(gid.is_second for gid in port.gids):
        yield finding(
            by_name("ib-error"),
            f"{port.name} has no address for RoCE v2: its interface has no IP address, or RoCE v1 is forced",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )
    if port.mtu is not None and port.mtu < _ROCE_MTU:
        yield finding(
            by_name("ib-port-degraded"),
            f"the interface of {port.name} has an MTU of {port.mtu}: RoCE "
            f"packets are cut to 1,024 bytes where {_ROCE_MTU} would let them have 4,096",
            level=Level.NOTE,
            evidence=evidence,
            confidence=0.7,
        )


def _partition(port: Port, place: Place, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    """NCCL uses the partition at index NCCL_IB_PKEY (0); two limited members of a partition cannot talk."""
    index = place.environ.get("NCCL_IB_PKEY", "0")
    if not port.pkeys or not _is_index(index):
        return
    key = port.pkeys[int(index)] if int(index) < len(port.pkeys) else 0
    seen = (*evidence, fact(f"{port.name} P_Keys", ", ".join(f"{key:#06x}" for key in port.pkeys if key), "pkeys"))
    if key == 0:
        yield finding(
            by_name("ib-error"), f"{port.name} has no partition at index {index}, which NCCL will use", evidence=seen
        )
    elif not key & _FULL_MEMBER:
        yield finding(
            by_name("ib-error"),
            f"{port.name} is only a limited member of partition {key:#06x}: it cannot talk to other limited members",
            level=Level.WARNING,
            evidence=seen,
            confidence=0.8,
        )

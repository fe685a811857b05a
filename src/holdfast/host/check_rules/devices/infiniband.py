"""Judges the InfiniBand and RoCE ports that NCCL will use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.causes.network.ib_error import IB_ERROR
from holdfast.causes.network.ib_port_degraded import IB_PORT_DEGRADED
from holdfast.core.findings import Fact, Finding, Level, make_finding
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.devices.infiniband import InfiniBandResult, Port, describe_port

#: A link of a training adapter has four lanes; fewer indicate a bad contact or cable.
_LANES = 4
#: RoCE uses its largest packet, 4,096 bytes, only with an MTU of 4,200 or more.
_ROCE_MTU = 4200
_FULL_MEMBER = 0x8000
#: Counters that indicate a bad link, not just a busy network.
_LINK_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
    "port_rcv_errors",
)


def judge(result: InfiniBandResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the variables that name ports first, then each port."""
    hca = context.environ.get("NCCL_IB_HCA")
    ports = _select_ports(result.ports, hca)
    disabled = context.environ.get("NCCL_IB_DISABLE") == "1"
    if hca and not ports and not disabled:
        names = ", ".join(port.name for port in result.ports)
        yield make_finding(
            IB_ERROR,
            f"NCCL_IB_HCA={hca} matches no adapter of this host ({names}): NCCL will use sockets, "
            f"or fail",
            evidence=result.facts(),
        )
    if not result.openable and not disabled:
        yield make_finding(
            IB_ERROR,
            "RDMA adapters exist but /dev/infiniband has no devices: the container was started "
            "without them",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.9,
        )
    roce_ports = [port for port in ports if port.is_active and port.layer == "Ethernet"]
    yield from _judge_gid_index(roce_ports, context)
    for port in ports:
        yield from _judge_port(port, ports, context)


def _select_ports(ports: Sequence[Port], hca: str | None) -> tuple[Port, ...]:
    """Return the ports that NCCL_IB_HCA selects, by prefix (= exact, ^ excluded) and port."""
    if not hca:
        return tuple(ports)
    text = hca.strip()
    inverted, text = text.startswith("^"), text.removeprefix("^")
    exact, text = text.startswith("="), text.removeprefix("=")
    patterns = [pattern.strip().partition(":") for pattern in text.split(",") if pattern.strip()]

    def matches(port: Port) -> bool:
        return any(
            (port.device == name if exact else port.device.startswith(name))
            and number in ("", str(port.number))
            for name, _, number in patterns
        )

    return tuple(port for port in ports if matches(port) != inverted)


def _judge_port(port: Port, ports: Sequence[Port], context: CheckContext) -> Iterator[Finding]:
    cause, evidence = IB_PORT_DEGRADED, (describe_port(port),)
    if not port.is_active:
        yield from _judge_inactive(port, ports, evidence)
        return
    fastest = max(
        (other.rate_gbits or 0 for other in ports if other.layer == port.layer), default=0
    )
    if port.lanes is not None and port.lanes < _LANES and (port.rate_gbits or 0) < fastest:
        yield make_finding(
            cause,
            f"{port.name} uses {port.lanes} of {_LANES} lanes, at {port.rate_gbits:g} Gbit/s",
            level=Level.WARNING,
            evidence=evidence,
        )
    elif port.rate_gbits is not None and port.rate_gbits < fastest:
        yield make_finding(
            cause,
            f"{port.name} runs at {port.rate_gbits:g} Gbit/s, other ports of this host at "
            f"{fastest:g} Gbit/s",
            level=Level.NOTE,
            evidence=evidence,
            confidence=0.6,
        )
    errors = {name: count for name, count in port.errors.items() if name in _LINK_ERRORS}
    if errors:
        counts = ", ".join(f"{name} {count}" for name, count in errors.items())
        yield make_finding(
            cause,
            f"link errors on {port.name} since its driver was loaded: {counts}",
            level=Level.NOTE,
            evidence=evidence,
            confidence=0.5,
        )
    if port.layer == "Ethernet":
        yield from _judge_roce(port, evidence)
    else:
        yield from _judge_partition(port, context, evidence)


def _judge_inactive(
    port: Port, ports: Sequence[Port], evidence: tuple[Fact, ...]
) -> Iterator[Finding]:
    """An unplugged port is no fault while another one works."""
    plugged = port.physical in ("LinkUp", "LinkErrorRecovery")
    others = any(other.is_active for other in ports)
    waits = port.layer == "InfiniBand" and port.state in ("INIT", "ARMED")
    why = ": the cable is connected, but no subnet manager has configured the port" if waits else ""
    if plugged or not others:
        yield make_finding(
            IB_PORT_DEGRADED,
            f"{port.name} is {port.state or 'in an unknown state'}{why}; NCCL will not use it"
            f"{'' if others else ', and no other port is active'}",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )


def _judge_gid_index(ports: Sequence[Port], context: CheckContext) -> Iterator[Finding]:
    """The index applies to all ports; on each of them it must be a RoCE v2 address."""
    index = context.environ.get("NCCL_IB_GID_INDEX", "")
    if not _is_index(index):
        return
    kinds = [
        (port, next((gid.kind for gid in port.gids if gid.index == int(index)), ""))
        for port in ports
    ]
    wrong = [
        (port, kind)
        for port, kind in kinds
        if "v2" not in kind and any(gid.is_roce_v2 for gid in port.gids)
    ]
    if wrong:
        first, kind = wrong[0]
        indices = ", ".join(str(gid.index) for gid in first.gids if gid.is_roce_v2)
        names = ", ".join(port.name for port, _ in wrong)
        yield make_finding(
            IB_ERROR,
            f"NCCL_IB_GID_INDEX={index} is {f'of type {kind}' if kind else 'an unused entry'} on "
            f"{names}; RoCE v2 is at index {indices}",
            evidence=tuple(
                check_fact(f"{port.name} GID {gid.index}", f"{gid.address} {gid.kind}", "gid_attrs")
                for port, _ in wrong
                for gid in port.gids
            ),
        )


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _judge_roce(port: Port, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    if not any(gid.is_roce_v2 for gid in port.gids):
        yield make_finding(
            IB_ERROR,
            f"{port.name} has no RoCE v2 address: its interface has no IP address, or RoCE v1 is "
            f"forced",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )
    if port.mtu is not None and port.mtu < _ROCE_MTU:
        yield make_finding(
            IB_PORT_DEGRADED,
            f"the interface of {port.name} has an MTU of {port.mtu}: RoCE packets are limited to "
            f"1,024 bytes; an MTU of {_ROCE_MTU} allows 4,096",
            level=Level.NOTE,
            evidence=evidence,
            confidence=0.7,
        )


def _judge_partition(
    port: Port, context: CheckContext, evidence: tuple[Fact, ...]
) -> Iterator[Finding]:
    """NCCL uses the partition at index NCCL_IB_PKEY (0).

    Two limited members of one cannot communicate.
    """
    index = context.environ.get("NCCL_IB_PKEY", "0")
    if not port.pkeys or not _is_index(index):
        return
    key = port.pkeys[int(index)] if int(index) < len(port.pkeys) else 0
    keys = ", ".join(f"{pkey:#06x}" for pkey in port.pkeys if pkey)
    evidence = (*evidence, check_fact(f"{port.name} P_Keys", keys, "pkeys"))
    if key == 0:
        yield make_finding(
            IB_ERROR,
            f"{port.name} has no partition at index {index}, which NCCL will use",
            evidence=evidence,
        )
    elif not key & _FULL_MEMBER:
        yield make_finding(
            IB_ERROR,
            f"{port.name} is only a limited member of partition {key:#06x}: it cannot communicate "
            "with other limited members",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )

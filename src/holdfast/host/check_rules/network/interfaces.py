"""Judges the network interfaces, and whether those that the variables name exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from ipaddress import ip_interface
from itertools import chain

from holdfast.causes.network.network_fabric_fault import NETWORK_FABRIC_FAULT
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.causes.remedies import automatic
from holdfast.core.findings import Cause, Finding, Level, Remedy, Unknown, make_finding
from holdfast.host.check_rules.interface_names import INTERFACE_VARIABLES, matching_interfaces
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.network.interfaces import InterfacesResult, NetworkInterface

#: IPv6 needs packets of at least this size on every link (RFC 8200, section 5); smaller MTUs come
#: from tunnels.
_MIN_MTU = 1280
#: Errors per packet from which a link is reported, and their minimum count.
_ERROR_RATE, _MIN_ERRORS = 1e-5, 100
#: Some drops are normal (unknown protocols, full rings at the start); these are not.
_DROP_RATE, _MIN_DROPS = 0.01, 10_000


def judge(result: InterfacesResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the variables, then link faults, shared networks, MTUs and addresses."""
    if isinstance(result.interfaces, Unknown):
        return
    yield from _judge_variables(result, result.interfaces, context)
    outer = result.outer()
    yield from chain.from_iterable(_judge_interface(interface) for interface in outer)
    yield from _judge_shared_networks(outer)
    yield from _judge_mtus(outer)
    if not any(interface.addresses for interface in outer):
        yield _interface_finding(
            NETWORK_INTERFACE_WRONG,
            Level.NOTE,
            "this host has only loopback addresses: only single-host jobs can run",
            list(result.interfaces),
            0.9,
        )
    elif context.environ.get("NCCL_SOCKET_FAMILY") == "AF_INET6" and not any(
        interface.routable_addresses(6) for interface in outer
    ):
        yield _interface_finding(
            NETWORK_INTERFACE_WRONG,
            Level.ERROR,
            "NCCL_SOCKET_FAMILY=AF_INET6, but no interface has a routable IPv6 address: NCCL finds "
            "no interface",
            outer,
            0.9,
        )


def _judge_variables(
    result: InterfacesResult, interfaces: Sequence[NetworkInterface], context: CheckContext
) -> Iterator[Finding]:
    names = [interface.name for interface in interfaces]
    for variable in (name for name in INTERFACE_VARIABLES if context.environ.get(name)):
        value = context.environ[variable]
        selected = matching_interfaces(variable, value, names)
        selection = [interface for interface in interfaces if interface.name in selected]
        if not selected:
            yield make_finding(
                NETWORK_INTERFACE_WRONG,
                f"{variable}={value} matches no interface of this host ({', '.join(names)}): "
                f"connections fail",
                evidence=(check_fact(variable, value, "the environment"), *result.facts()),
                confidence=0.95,
            )
        elif not any(interface.addresses and interface.up is not False for interface in selection):
            yield _interface_finding(
                NETWORK_INTERFACE_WRONG,
                Level.ERROR,
                f"{variable}={value} selects {', '.join(selected)}, which is down or has no "
                f"address",
                selection,
                0.9,
            )


def _judge_interface(interface: NetworkInterface) -> Iterator[Finding]:
    name, packets = interface.name, interface.packets
    faults: list[tuple[Level, str, float]] = []
    if interface.carrier is False and interface.addresses:
        message = (
            f"{name} has an address but no carrier: its cable or port is down, and packets are lost"
        )
        faults.append((Level.WARNING, message, 0.9))
    if interface.errors >= _MIN_ERRORS and interface.errors > _ERROR_RATE * packets:
        message = (
            f"{name} has {interface.errors:,} errors in {packets:,} packets: faulty cable, port or "
            f"driver"
        )
        faults.append((Level.WARNING, message, 0.6))
    if interface.dropped >= _MIN_DROPS and interface.dropped > _DROP_RATE * packets:
        message = (
            f"{name} has dropped {interface.dropped:,} of {packets:,} packets since it came up"
        )
        faults.append((Level.NOTE, message, 0.4))
    if interface.duplex == "half":
        message = (
            f"{name} runs half duplex: autonegotiation failed, so that the link is slow and loses "
            f"packets"
        )
        faults.append((Level.WARNING, message, 0.8))
    if interface.duplicates:
        message = (
            f"{name} cannot use {', '.join(interface.duplicates)}: another host has that IPv6 "
            f"address"
        )
        faults.append((Level.WARNING, message, 0.9))
    if isinstance(interface.mtu, int) and interface.mtu < _MIN_MTU:
        message = (
            f"the MTU of {name} is {interface.mtu}, and IPv6 needs {_MIN_MTU}: large messages may "
            f"be lost"
        )
        faults.append((Level.WARNING, message, 0.5))
    for level, message, confidence in faults:
        yield _interface_finding(NETWORK_FABRIC_FAULT, level, message, [interface], confidence)


def _judge_shared_networks(outer: Sequence[NetworkInterface]) -> Iterator[Finding]:
    """In one network either interface answers ARP for the other, and replies leave by one."""
    members: dict[str, list[NetworkInterface]] = defaultdict(list)
    for interface in outer:
        addresses = (*interface.routable_addresses(4), *interface.routable_addresses(6))
        for network in {str(ip_interface(text).network) for text in addresses}:
            members[network].append(interface)
    for network, sharing in members.items():
        if len(sharing) > 1 and "/32" not in network and "/128" not in network:
            yield _interface_finding(
                NETWORK_INTERFACE_WRONG,
                Level.NOTE,
                f"{' and '.join(interface.name for interface in sharing)} are both in {network}: "
                "all traffic leaves by one of them unless source-based routes are set",
                sharing,
                0.6,
            )


def _judge_mtus(outer: Sequence[NetworkInterface]) -> Iterator[Finding]:
    addressed = [interface for interface in outer if interface.addresses]
    if len({interface.mtu for interface in addressed if isinstance(interface.mtu, int)}) > 1:
        mtus = ", ".join(f"{interface.name} {interface.mtu}" for interface in addressed)
        yield _interface_finding(
            NETWORK_FABRIC_FAULT,
            Level.NOTE,
            f"interfaces have different MTUs ({mtus}): all hosts need the same MTU on the job's "
            f"network",
            outer,
            0.5,
        )


def _interface_finding(
    cause: Cause,
    level: Level,
    message: str,
    interfaces: Sequence[NetworkInterface],
    confidence: float,
) -> Finding:
    remedies: tuple[Remedy, ...] = ()
    if len(interfaces) == 1:
        show = automatic(
            "Show the state of the interface.", f"ip -s -d link show {interfaces[0].name}"
        )
        remedies = (show, *cause.remedies)
    return make_finding(
        cause,
        message,
        level=level,
        evidence=InterfacesResult(interfaces=tuple(interfaces)).facts(),
        remedies=remedies,
        confidence=confidence,
    )

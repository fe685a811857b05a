"""Routes of this host, and the route to the rendezvous: interface, source address, MTU.

The table is read from /proc/net. The kernel looks the route up when a UDP socket connects, without
sending a packet: this also applies policy routing and VRFs.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network.interfaces import interface_addresses, parse_hex_ipv4
from holdfast.host.checks.network.resolver import resolve_name
from holdfast.host.processes import proc

_IP_MTU, _IPV6_MTU = 14, 24  # of <linux/in.h> and <linux/in6.h>; the socket module lacks them
_REJECT = 0x0200  # RTF_REJECT of <linux/route.h>
_UNREACHABLE = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM, errno.EINVAL}
)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the kernel's main table. ``rejects``: the route is unreachable or a blackhole."""

    destination: str
    gateway: str | None
    interface: str
    metric: int = 0
    rejects: bool = False


class RouteLookup(msgspec.Struct, frozen=True, kw_only=True):
    """The route to ``address``. ``refused`` is the kernel's error if there is none.

    ``mtu`` its path MTU. ``local``: the address belongs to this host.
    """

    address: str
    interface: str | None = None
    source: str | None = None
    gateway: str | None = None
    mtu: int | None = None
    local: bool = False
    refused: str = ""


class RoutesResult(CheckResult, frozen=True, kw_only=True):
    """The table, and the routes to the endpoint's addresses (none without an endpoint)."""

    table: tuple[Route, ...] | Unknown
    endpoint: str | None = None
    routes: tuple[RouteLookup, ...] | Unknown = ()

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        facts = []
        if isinstance(self.routes, Unknown):
            facts.append(check_fact(f"route to {self.endpoint}", self.routes, "the kernel"))
        else:
            origin = "route lookup by the kernel (connected UDP socket)"
            facts += [
                check_fact(
                    f"route to {self.endpoint}", _describe_route(route, self.endpoint), origin
                )
                for route in self.routes
            ]
        if isinstance(self.table, Unknown):
            return (*facts, check_fact("routes", self.table, "/proc/net/route"))
        default = [
            route
            for route in self.table
            if route.destination in {"0.0.0.0/0", "::/0"} and not route.rejects
        ]
        text = "; ".join(
            f"default via {route.gateway} dev {route.interface}"
            if route.gateway
            else f"default dev {route.interface}"
            for route in default
        )
        return (
            *facts,
            check_fact(
                "routes", f"{len(self.table)}, {text or 'no default route'}", "/proc/net/route"
            ),
        )


def _describe_route(route: RouteLookup, endpoint: str | None) -> str:
    parts = [] if route.address == endpoint else [route.address]
    if route.refused:
        return ", ".join((*parts, route.refused))
    parts += ["this host"] if route.local else []
    parts.append(f"dev {route.interface or 'unknown'}")
    parts += [f"src {route.source}"] if route.source else []
    parts += [f"via {route.gateway}"] if route.gateway else []
    parts += [f"MTU {route.mtu}"] if route.mtu else []
    return ", ".join(parts)


def inspect(context: CheckContext) -> RoutesResult:
    """Read the tables, resolve the endpoint (which may be slow), and look up the route to it."""
    rows = read_route_table(context)
    if context.endpoint is None:
        return RoutesResult(table=rows)
    name, port = context.endpoint
    resolved = resolve_name(context, name)
    routes: tuple[RouteLookup, ...] | Unknown = tuple(
        lookup_route(context, address, port) for address in resolved.addresses
    )
    if not routes:
        routes = () if resolved.is_known_absent else Unknown(f"{name}: {resolved.failure}")
    return RoutesResult(table=rows, endpoint=name, routes=routes)


def read_route_table(context: CheckContext) -> tuple[Route, ...] | Unknown:
    """Return the main table, IPv4 then IPv6, without IPv6 loopback and multicast routes."""
    lines = proc.read_text(context.path("/proc/net/route"))
    if isinstance(lines, Unknown):
        return lines
    return (
        *_parse_ipv4_routes(lines),
        *_parse_ipv6_routes(proc.read_text(context.path("/proc/net/ipv6_route"))),
    )


def _parse_ipv4_routes(lines: str) -> Iterator[Route]:
    for line in lines.splitlines()[1:]:
        device, destination, gateway, flags, _, _, metric, mask = line.split()[:8]
        yield Route(
            destination=str(IPv4Network(f"{parse_hex_ipv4(destination)}/{parse_hex_ipv4(mask)}")),
            gateway=parse_hex_ipv4(gateway) if gateway != "00000000" else None,
            interface=device,
            metric=int(metric),
            rejects=bool(int(flags, 16) & _REJECT),
        )


def _parse_ipv6_routes(lines: str | Unknown) -> Iterator[Route]:
    for line in () if isinstance(lines, Unknown) else lines.splitlines():
        digits, length, _, _, gateway, metric, _, _, flags, device = line.split()
        destination = IPv6Network((int(digits, 16), int(length, 16)))
        if device == "lo" or destination.is_multicast:
            continue
        hop = IPv6Address(int(gateway, 16))
        yield Route(
            destination=str(destination),
            gateway=str(hop) if int(hop) else None,
            interface=device,
            metric=int(metric, 16),
            rejects=bool(int(flags, 16) & _REJECT),
        )


def lookup_route(context: CheckContext, address: str, port: int = 1) -> RouteLookup:
    """Look up the route to an address, by the kernel or in the table of a recorded tree."""
    parsed = ip_address(address.partition("%")[0])
    addresses = interface_addresses(context)
    own = {text.partition("/")[0]: device for device, texts in addresses.items() for text in texts}
    if parsed.is_loopback or str(parsed) in own:
        return RouteLookup(
            address=address, interface=own.get(str(parsed), "lo"), source=str(parsed), local=True
        )
    row = _best_route(read_route_table(context), parsed)
    if context.root == "/":
        route = _kernel_lookup(address, port, parsed.version)
        device = own.get(route.source or "", row.interface if row else None)
        gateway = row.gateway if row is not None and row.interface == device else None
        return msgspec.structs.replace(route, interface=device, gateway=gateway)
    if row is None or row.rejects:
        return RouteLookup(address=address, refused="no route")
    sources = [text.partition("/")[0] for text in addresses.get(row.interface, ())]
    source = next((text for text in sources if ip_address(text).version == parsed.version), None)
    return RouteLookup(address=address, interface=row.interface, source=source, gateway=row.gateway)


def _kernel_lookup(address: str, port: int, version: int) -> RouteLookup:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    level, option = (
        (socket.IPPROTO_IP, _IP_MTU) if version == 4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
    )
    with socket.socket(family, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect((address, port))
        except OSError as error:
            if error.errno not in _UNREACHABLE:
                raise
            return RouteLookup(address=address, refused=str(error.strerror).lower())
        mtu = None
        with suppress(OSError):
            mtu = udp.getsockopt(level, option)
        return RouteLookup(address=address, source=udp.getsockname()[0].partition("%")[0], mtu=mtu)


def _best_route(
    rows: tuple[Route, ...] | Unknown, address: IPv4Address | IPv6Address
) -> Route | None:
    """Return the matching route with the longest prefix, then the lowest metric."""
    if isinstance(rows, Unknown):
        return None
    networks = [(ip_network(row.destination), row) for row in rows]
    matching = [
        (network.prefixlen, -row.metric, row)
        for network, row in networks
        if network.version == address.version and address in network
    ]
    return max(matching, key=lambda match: match[:2])[2] if matching else None

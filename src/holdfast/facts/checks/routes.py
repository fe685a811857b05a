"""Routes of this host, and the way that the kernel takes to the rendezvous: interface, own address, packet size.

The table is read from /proc/net. The way itself is asked of the kernel, with a UDP socket that is connected and sends
nothing: so rules beyond the table (policy routing, VRFs) are heeded too.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.interfaces import addresses, backwards
from holdfast.facts.resolver import ask
from holdfast.findings import Fact, Unknown

_IP_MTU, _IPV6_MTU = 14, 24  # of <linux/in.h> and <linux/in6.h>; the socket module has no names for them
_REJECT = 0x0200  # RTF_REJECT of <linux/route.h>
_NO_WAY = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM, errno.EINVAL})


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the kernel's main table. ``rejects``: packets are refused here (unreachable, blackhole)."""

    destination: str
    gateway: str | None
    interface: str
    metric: int = 0
    rejects: bool = False


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How packets to ``address`` leave. ``refused`` is the kernel's reason where they do not; ``mtu`` as it knows it.

    ``local``: the address is this host's own.
    """

    address: str
    interface: str | None = None
    source: str | None = None
    gateway: str | None = None
    mtu: int | None = None
    local: bool = False
    refused: str = ""


class Routes(Seen, frozen=True, kw_only=True):
    """The table, and the ways to the endpoint: none where it is not named or has no address."""

    table: tuple[Route, ...] | Unknown
    endpoint: str | None = None
    ways: tuple[Way, ...] | Unknown = ()

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        told = []
        if isinstance(self.ways, Unknown):
            told.append(fact(f"way to {self.endpoint}", self.ways, "the kernel"))
        else:
            origin = "the kernel, asked by a UDP socket"
            told += [fact(f"way to {self.endpoint}", _said(way, self.endpoint), origin) for way in self.ways]
        if isinstance(self.table, Unknown):
            return (*told, fact("routes", self.table, "/proc/net/route"))
        default = [route for route in self.table if route.destination in {"0.0.0.0/0", "::/0"} and not route.rejects]
        text = "; ".join(f"default through {route.interface}" + (f" by {route.gateway}" if route.gateway else "")
                         for route in default)  # fmt: skip
        return (*told, fact("routes", f"{len(self.table)}, {text or 'no default'}", "/proc/net/route"))


def _said(way: Way, endpoint: str | None) -> str:
    parts = [] if way.address == endpoint else [way.address]
    if way.refused:
        return ", ".join((*parts, way.refused))
    parts += ["this host's own"] if way.local else []
    parts.append(f"through {way.interface or 'an interface that is not seen'}")
    parts += [f"from {way.source}"] if way.source else []
    parts += [f"by {way.gateway}"] if way.gateway else []
    parts += [f"mtu {way.mtu}"] if way.mtu else []
    return ", ".join(parts)


def look(place: Place) -> Routes:
    """Read the tables; resolve the endpoint, which may take its time, and ask for the way to it."""
    rows = table(place)
    if place.endpoint is None:
        return Routes(table=rows)
    name, port = place.endpoint
    answer = ask(place, name)
    ways: tuple[Way, ...] | Unknown = tuple(towards(place, address, port) for address in answer.addresses)
    if not ways:
        ways = () if answer.is_known_absent else Unknown(f"{name}: {answer.trouble}")
    return Routes(table=rows, endpoint=name, ways=ways)


def table(place: Place) -> tuple[Route, ...] | Unknown:
    """The rows of the main table, IPv4 then IPv6, without those of single own addresses and of multicast."""
    lines = proc.text(place.path("/proc/net/route"))
    if isinstance(lines, Unknown):
        return lines
    return (*_version4(lines), *_version6(proc.text(place.path("/proc/net/ipv6_route"))))


def _version4(lines: str) -> Iterator[Route]:
    for line in lines.splitlines()[1:]:
        device, destination, gateway, flags, _, _, metric, mask = line.split()[:8]
        yield Route(
            destination=str(IPv4Network(f"{backwards(destination)}/{backwards(mask)}")),
            gateway=backwards(gateway) if gateway != "00000000" else None,
            interface=device, metric=int(metric), rejects=bool(int(flags, 16) & _REJECT),
        )  # fmt: skip


def _version6(lines: str | Unknown) -> Iterator[Route]:
    for line in () if isinstance(lines, Unknown) else lines.splitlines():
        digits, length, _, _, gateway, metric, _, _, flags, device = line.split()
        destination = IPv6Network((int(digits, 16), int(length, 16)))
        if device == "lo" or destination.is_multicast:
            continue
        hop = IPv6Address(int(gateway, 16))
        yield Route(destination=str(destination), gateway=str(hop) if int(hop) else None, interface=device,
                    metric=int(metric, 16), rejects=bool(int(flags, 16) & _REJECT))  # fmt: skip


def towards(place: Place, address: str, port: int = 1) -> Way:
    """The way to an address: asked of the kernel here, worked out from the table in a recorded tree."""
    parsed = ip_address(address.partition("%")[0])
    held = addresses(place)
    own = {text.partition("/")[0]: device for device, texts in held.items() for text in texts}
    if parsed.is_loopback or str(parsed) in own:
        return Way(address=address, interface=own.get(str(parsed), "lo"), source=str(parsed), local=True)
    row = _matching(table(place), parsed)
    if place.root == "/":
        way = _asked(address, port, parsed.version)
        device = own.get(way.source or "", row.interface if row else None)
        gateway = row.gateway if row is not None and row.interface == device else None
        return msgspec.structs.replace(way, interface=device, gateway=gateway)
    if row is None or row.rejects:
        return Way(address=address, refused="no route")
    sources = [text.partition("/")[0] for text in held.get(row.interface, ())]
    source = next((text for text in sources if ip_address(text).version == parsed.version), None)
    return Way(address=address, interface=row.interface, source=source, gateway=row.gateway)


def _asked(address: str, port: int, version: int) -> Way:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    level, option = (socket.IPPROTO_IP, _IP_MTU) if version == 4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, port))
        except OSError as error:
            if error.errno not in _NO_WAY:
                raise
            return Way(address=address, refused=str(error.strerror).lower())
        mtu = None
        with suppress(OSError):
            mtu = asking.getsockopt(level, option)
        return Way(address=address, source=asking.getsockname()[0].partition("%")[0], mtu=mtu)


def _matching(rows: tuple[Route, ...] | Unknown, address: IPv4Address | IPv6Address) -> Route | None:
    """Longest prefix first, then the least metric."""
    if isinstance(rows, Unknown):
        return None
    networks = [(ip_network(row.destination), row) for row in rows]
    fitting = [each for each in networks if each[0].version == address.version and address in each[0]]
    return max(fitting, key=lambda each: (each[0].prefixlen, -each[1].metric))[1] if fitting else None

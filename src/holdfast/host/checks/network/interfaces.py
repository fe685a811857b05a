"""Network interfaces: state, speed, MTU, addresses, errors and drops.

A live host is read with psutil (getifaddrs and the ioctls of ethtool), a recorded tree from
/proc/net and /sys/class/net. pyroute2 offers the same over netlink but would be one more dependency
and cannot read a recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_interface
from typing import Any

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

_UP, _LOOPBACK = 0x1, 0x8  # IFF_ of <linux/if.h>
_DUPLICATE = 0x08  # IFA_F_DADFAILED of <linux/if_addr.h>
#: Interfaces of containers, virtual machines and VPNs, which training traffic does not use.
VIRTUAL_INTERFACE = re.compile(
    r"(docker|veth|br-|cni|flannel|cali|cilium|virbr|lxc|podman|tailscale|wg|tun|tap|kube-)"
)
_LOCAL = re.compile(r"\|-- (?P<address>\S+)\n\s+/32 host LOCAL")


class NetworkInterface(msgspec.Struct, frozen=True, kw_only=True):
    """One interface. ``addresses`` include the prefix (``10.0.0.1/24``).

    ``speed_mbit`` and ``carrier`` may not apply. ``duplicates``: IPv6 addresses already in use by
    another host (DAD failed). Counters start when it comes up.
    """

    name: str
    up: bool | Unknown
    loopback: bool = False
    carrier: bool | None = None
    speed_mbit: int | None = None
    duplex: str = ""
    mtu: int | Unknown
    addresses: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    packets: int = 0
    errors: int = 0
    dropped: int = 0

    @property
    def is_virtual(self) -> bool:
        """Whether its name is that of a container, virtual-machine or VPN interface."""
        return VIRTUAL_INTERFACE.match(self.name) is not None

    def routable_addresses(self, version: int) -> list[str]:
        """Return its addresses of this IP version without loopback and link-local ones."""
        parsed = [(text, ip_interface(text).ip) for text in self.addresses]
        return [
            text
            for text, address in parsed
            if address.version == version and not address.is_loopback and not address.is_link_local
        ]


class InterfacesResult(CheckResult, frozen=True, kw_only=True):
    """All interfaces of this network namespace."""

    interfaces: tuple[NetworkInterface, ...] | Unknown

    def outer(self) -> list[NetworkInterface]:
        """Return the interfaces that are up and lead to other hosts."""
        interfaces = () if isinstance(self.interfaces, Unknown) else self.interfaces
        return [
            interface
            for interface in interfaces
            if interface.up is True and not interface.loopback and not interface.is_virtual
        ]

    def facts(self) -> tuple[Fact, ...]:
        """Return one fact per interface, those that are up first."""
        if isinstance(self.interfaces, Unknown):
            return (check_fact("interfaces", self.interfaces, "/proc/net/dev"),)
        order = sorted(
            self.interfaces,
            key=lambda interface: (
                interface.loopback,
                interface.up is not True,
                interface.is_virtual,
            ),
        )
        return tuple(
            check_fact(
                interface.name, _describe_interface(interface), f"/sys/class/net/{interface.name}"
            )
            for interface in order
        )


def _describe_interface(interface: NetworkInterface) -> str:
    words = ["up" if interface.up is True else "down" if interface.up is False else "state unknown"]
    words += ["no carrier"] if interface.carrier is False and interface.up is True else []
    words += [f"{interface.speed_mbit} Mbit/s"] if interface.speed_mbit else []
    words += [f"MTU {interface.mtu}"] if isinstance(interface.mtu, int) else []
    words += interface.addresses or ["no address"]
    words += [f"{interface.errors} errors"] if interface.errors else []
    words += [f"{interface.dropped} dropped"] if interface.dropped else []
    return ", ".join(words)


def inspect(context: CheckContext) -> InterfacesResult:
    """Read the state of all interfaces."""
    table = proc.read_text(context.path("/proc/net/dev"))
    if isinstance(table, Unknown):
        return InterfacesResult(interfaces=table)
    addresses = interface_addresses(context)
    lines = (line.partition(":") for line in table.splitlines()[2:])
    interfaces = tuple(
        _read_interface(context, name.strip(), counts.split(), addresses)
        for name, _, counts in lines
    )
    return InterfacesResult(interfaces=interfaces or Unknown("/proc/net/dev lists no interface"))


def _read_interface(
    context: CheckContext, name: str, counts: list[str], addresses: Mapping[str, tuple[str, ...]]
) -> NetworkInterface:
    numbers = [int(count) for count in counts] if len(counts) == 16 else [0] * 16
    duplicates = tuple(
        text
        for device, text, flags in _ipv6_addresses(context)
        if device == name and flags & _DUPLICATE
    )
    return msgspec.structs.replace(
        _from_sys(context, name),
        **(_from_psutil(name) if context.root == "/" else {}),
        addresses=addresses.get(name, ()),
        duplicates=duplicates,
        packets=numbers[1] + numbers[9],
        errors=numbers[2] + numbers[10],
        dropped=numbers[3] + numbers[11],
    )


def _from_sys(context: CheckContext, name: str) -> NetworkInterface:
    """Read /sys, which may show another network namespace than that of this process."""
    folder = context.path(f"/sys/class/net/{name}")
    flags = proc.read_text(folder / "flags")
    bits = int(flags, 16) if isinstance(flags, str) else 0
    carrier, speed, duplex = (
        proc.read_number(folder / "carrier"),
        proc.read_number(folder / "speed"),
        proc.read_text(folder / "duplex"),
    )
    return NetworkInterface(
        name=name,
        up=flags if isinstance(flags, Unknown) else bool(bits & _UP),
        loopback=bool(bits & _LOOPBACK) or name == "lo",
        carrier=bool(carrier) if isinstance(carrier, int) else None,
        speed_mbit=speed if isinstance(speed, int) and speed > 0 else None,
        duplex=duplex.strip() if isinstance(duplex, str) else "",
        mtu=proc.read_number(folder / "mtu"),
    )


def _from_psutil(name: str) -> dict[str, Any]:
    """Read the state by ioctl, which always uses the network namespace of this process."""
    import psutil  # noqa: PLC0415

    stats = psutil.net_if_stats().get(name)
    if stats is None:
        return {}
    flags = set(stats.flags.split(","))
    duplex = {psutil.NIC_DUPLEX_FULL: "full", psutil.NIC_DUPLEX_HALF: "half"}.get(stats.duplex, "")
    running = "running" in flags if "up" in flags else None
    return {
        "up": "up" in flags,
        "loopback": "loopback" in flags,
        "carrier": running,
        "mtu": stats.mtu,
        "speed_mbit": stats.speed or None,
        "duplex": duplex,
    }


def interface_addresses(context: CheckContext) -> Mapping[str, tuple[str, ...]]:
    """Return the addresses of each interface, with prefixes; empty if nothing can be read."""
    addresses: dict[str, list[str]] = {}
    for device, text in _ipv4_live() if context.root == "/" else _ipv4_recorded(context):
        addresses.setdefault(device, []).append(text)
    for device, text, _ in _ipv6_addresses(context):
        addresses.setdefault(device, []).append(text)
    return {device: tuple(dict.fromkeys(texts)) for device, texts in addresses.items()}


def interface_of_address(context: CheckContext) -> dict[str, str]:
    """Return the interface of each address of this host, without prefixes."""
    return {
        text.partition("/")[0]: name
        for name, texts in interface_addresses(context).items()
        for text in texts
    }


def own_addresses(context: CheckContext) -> frozenset[str]:
    """Return all addresses of this host, without prefixes."""
    return frozenset(interface_of_address(context))


def _ipv4_live() -> Iterator[tuple[str, str]]:
    import socket  # noqa: PLC0415 - takes 20 ms together with psutil; a recorded tree needs neither

    import psutil  # noqa: PLC0415

    for device, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET:
                length = IPv4Network(f"0.0.0.0/{entry.netmask or '255.255.255.255'}").prefixlen
                yield device, f"{entry.address}/{length}"


def _ipv4_recorded(context: CheckContext) -> Iterator[tuple[str, str]]:
    """Take local addresses from fib_trie, and their interfaces from the routing table."""
    trie, routes = (
        proc.read_text(context.path("/proc/net/fib_trie")),
        proc.read_text(context.path("/proc/net/route")),
    )
    if isinstance(trie, Unknown) or isinstance(routes, Unknown):
        return
    networks = []
    for line in routes.splitlines()[1:]:
        words = line.split()
        if len(words) >= 8 and words[2] == "00000000" and words[7] != "00000000":
            networks.append(
                (words[0], IPv4Network(f"{parse_hex_ipv4(words[1])}/{parse_hex_ipv4(words[7])}"))
            )
    for text in dict.fromkeys(match["address"] for match in _LOCAL.finditer(trie)):
        address = IPv4Address(text)
        if address.is_loopback:
            yield "lo", f"{text}/8"
            continue
        for device, network in networks:
            if address in network:
                yield device, f"{text}/{network.prefixlen}"


def _ipv6_addresses(context: CheckContext) -> Iterator[tuple[str, str, int]]:
    """Yield interface, address with prefix, and flags."""
    table = proc.read_text(context.path("/proc/net/if_inet6"))
    for line in () if isinstance(table, Unknown) else table.splitlines():
        digits, _, length, _, flags, device = line.split()
        yield device, f"{IPv6Address(int(digits, 16))}/{int(length, 16)}", int(flags, 16)


def parse_hex_ipv4(digits: str) -> str:
    """Parse an IPv4 address of /proc/net (little-endian hex): ``0100007F`` is 127.0.0.1."""
    return str(IPv4Address(bytes.fromhex(digits)[::-1]))

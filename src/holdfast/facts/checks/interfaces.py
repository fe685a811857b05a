"""Network interfaces: whether they are up, how fast, with what packets and addresses, and what they lost.

Here the kernel is asked (psutil: getifaddrs and the calls of ethtool); in a recorded tree /proc/net and /sys/class/net
tell. pyroute2 would say the same over netlink, would be one dependency more, and can read no recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_interface
from typing import Any

import msgspec

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

_UP, _LOOPBACK = 0x1, 0x8  # IFF_ of <linux/if.h>
_DUPLICATE = 0x08  # IFA_F_DADFAILED of <linux/if_addr.h>
#: Interfaces that containers, virtual machines and VPNs bring; training does not go through them.
INNER = re.compile(r"(docker|veth|br-|cni|flannel|cali|cilium|virbr|lxc|podman|tailscale|wg|tun|tap|kube-)")
_LOCAL = re.compile(r"\|-- (?P<address>\S+)\n\s+/32 host LOCAL")


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. ``addresses`` have their prefix (``10.0.0.1/24``); ``speed_mbit`` and ``carrier`` may not apply.

    ``duplicates``: IPv6 addresses that another host already had. Counters are since it came up.
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
    def inner(self) -> bool:
        """It leads to containers, virtual machines or a VPN, by its name."""
        return INNER.match(self.name) is not None

    def wide(self, version: int) -> list[str]:
        """Addresses of that version of IP with which other hosts can be reached: no loopback, no link-local ones."""
        parsed = [(text, ip_interface(text).ip) for text in self.addresses]
        return [text for text, address in parsed
                if address.version == version and not address.is_loopback and not address.is_link_local]  # fmt: skip


class Interfaces(Seen, frozen=True, kw_only=True):
    """All of this network namespace."""

    interfaces: tuple[Interface, ...] | Unknown

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`: first those that are up."""
        if isinstance(self.interfaces, Unknown):
            return (fact("interfaces", self.interfaces, "/proc/net/dev"),)
        order = sorted(self.interfaces, key=lambda each: (each.loopback, each.up is not True, each.inner))
        return tuple(fact(each.name, _said(each), f"/sys/class/net/{each.name}") for each in order)


def _said(one: Interface) -> str:
    words = ["up" if one.up is True else "down" if one.up is False else "of unknown state"]
    words += ["no carrier"] if one.carrier is False and one.up is True else []
    words += [f"{one.speed_mbit} Mbit/s"] if one.speed_mbit else []
    words += [f"mtu {one.mtu}"] if isinstance(one.mtu, int) else []
    words += one.addresses or ["no address"]
    words += [f"{one.errors} errors"] if one.errors else []
    words += [f"{one.dropped} dropped"] if one.dropped else []
    return ", ".join(words)


def look(place: Place) -> Interfaces:
    """Ask the kernel's files."""
    table = proc.text(place.path("/proc/net/dev"))
    if isinstance(table, Unknown):
        return Interfaces(interfaces=table)
    held = addresses(place)
    lines = (line.partition(":") for line in table.splitlines()[2:])
    found = tuple(_one(place, name.strip(), counts.split(), held) for name, _, counts in lines)
    return Interfaces(interfaces=found or Unknown("/proc/net/dev names no interface"))


def _one(place: Place, name: str, counts: list[str], held: Mapping[str, tuple[str, ...]]) -> Interface:
    numbers = [int(count) for count in counts] if len(counts) == 16 else [0] * 16
    taken = tuple(text for device, text, flags in _version6(place) if device == name and flags & _DUPLICATE)
    return msgspec.structs.replace(
        _recorded(place, name),
        **(_asked(name) if place.root == "/" else {}),
        addresses=held.get(name, ()),
        duplicates=taken,
        packets=numbers[1] + numbers[9],
        errors=numbers[2] + numbers[10],
        dropped=numbers[3] + numbers[11],
    )


def _recorded(place: Place, name: str) -> Interface:
    """By /sys, which tells of the network in which it was mounted: mostly, and not always, that of this process."""
    folder = place.path(f"/sys/class/net/{name}")
    flags = proc.text(folder / "flags")
    bits = int(flags, 16) if isinstance(flags, str) else 0
    carrier, speed, duplex = (
        proc.number(folder / "carrier"),
        proc.number(folder / "speed"),
        proc.text(folder / "duplex"),
    )
    return Interface(
        name=name,
        up=flags if isinstance(flags, Unknown) else bool(bits & _UP),
        loopback=bool(bits & _LOOPBACK) or name == "lo",
        carrier=bool(carrier) if isinstance(carrier, int) else None,
        speed_mbit=speed if isinstance(speed, int) and speed > 0 else None,
        duplex=duplex.strip() if isinstance(duplex, str) else "",
        mtu=proc.number(folder / "mtu"),
    )


def _asked(name: str) -> dict[str, Any]:
    """By the calls of ``ifconfig`` and ``ethtool``: of the network of this process, whatever is mounted at /sys."""
    import psutil  # noqa: PLC0415

    told = psutil.net_if_stats().get(name)
    if told is None:
        return {}
    flags = set(told.flags.split(","))
    duplex = {psutil.NIC_DUPLEX_FULL: "full", psutil.NIC_DUPLEX_HALF: "half"}.get(told.duplex, "")
    running = "running" in flags if "up" in flags else None
    return {
        "up": "up" in flags,
        "loopback": "loopback" in flags,
        "carrier": running,
        "mtu": told.mtu,
        "speed_mbit": told.speed or None,
        "duplex": duplex,
    }


def addresses(place: Place) -> Mapping[str, tuple[str, ...]]:
    """The addresses of each interface, with their prefixes; empty where nothing can be read."""
    held: dict[str, list[str]] = {}
    for device, text in _version4_here() if place.root == "/" else _version4_recorded(place):
        held.setdefault(device, []).append(text)
    for device, text, _ in _version6(place):
        held.setdefault(device, []).append(text)
    return {device: tuple(dict.fromkeys(texts)) for device, texts in held.items()}


def own(place: Place) -> frozenset[str]:
    """All addresses of this host, without prefixes."""
    return frozenset(text.partition("/")[0] for texts in addresses(place).values() for text in texts)


def _version4_here() -> Iterator[tuple[str, str]]:
    import socket  # noqa: PLC0415 - with psutil 20 ms that a recorded tree need not pay

    import psutil  # noqa: PLC0415

    for device, found in psutil.net_if_addrs().items():
        for each in found:
            if each.family == socket.AF_INET:
                length = IPv4Network(f"0.0.0.0/{each.netmask or '255.255.255.255'}").prefixlen
                yield device, f"{each.address}/{length}"


def _version4_recorded(place: Place) -> Iterator[tuple[str, str]]:
    """The trie knows which addresses are local, the routes which interface their network is at."""
    trie, routes = proc.text(place.path("/proc/net/fib_trie")), proc.text(place.path("/proc/net/route"))
    if isinstance(trie, Unknown) or isinstance(routes, Unknown):
        return
    networks = []
    for line in routes.splitlines()[1:]:
        words = line.split()
        if len(words) >= 8 and words[2] == "00000000" and words[7] != "00000000":
            networks.append((words[0], IPv4Network(f"{backwards(words[1])}/{backwards(words[7])}")))
    for text in dict.fromkeys(match["address"] for match in _LOCAL.finditer(trie)):
        address = IPv4Address(text)
        if address.is_loopback:
            yield "lo", f"{text}/8"
            continue
        for device, network in networks:
            if address in network:
                yield device, f"{text}/{network.prefixlen}"


def _version6(place: Place) -> Iterator[tuple[str, str, int]]:
    """Interface, address with prefix, flags."""
    table = proc.text(place.path("/proc/net/if_inet6"))
    for line in () if isinstance(table, Unknown) else table.splitlines():
        digits, _, length, _, flags, device = line.split()
        yield device, f"{IPv6Address(int(digits, 16))}/{int(length, 16)}", int(flags, 16)


def backwards(digits: str) -> str:
    """An IPv4 address as /proc/net writes it on machines of this byte order: ``0100007F`` is 127.0.0.1."""
    return str(IPv4Address(bytes.fromhex(digits)[::-1]))

"""Addresses of this host: interfaces, routes, and the addresses that gloo and NCCL publish.

gloo uses GLOO_SOCKET_IFNAME, else the address of the host's own name, else loopback
(torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice). NCCL uses
NCCL_SOCKET_IFNAME (name prefixes, ``=`` for exact names, ``^`` for exclusion), else ib*, then any
but docker* and lo, then docker*, then lo (nccl: src/misc/socket.cc, ncclFindInterfaces).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

from holdfast.core.findings import Unknown
from holdfast.preflight.rendezvous import InterfaceAddress, PublishedAddress
from holdfast.preflight.rendezvous.frames import normalize_address


def list_interfaces() -> tuple[InterfaceAddress, ...]:
    """Return the interfaces that are up, one entry per address, without link-local IPv6."""
    states = psutil.net_if_stats()
    return tuple(
        InterfaceAddress(name, normalize_address(entry.address), states[name].mtu)
        for name, entries in psutil.net_if_addrs().items()
        if name in states and states[name].isup
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
        and not entry.address.lower().startswith("fe80")
    )


def source_to(address: str) -> str:
    """Return the local address used to reach ``address``; empty without a route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return normalize_address(str(probe.getsockname()[0]))
    return ""


def is_own(address: str) -> bool:
    """Return whether this host can listen at the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def is_loopback(address: str) -> bool:
    """Return whether the address is in 127.0.0.0/8 or ::1."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def interface_of(address: str, known: Iterable[InterfaceAddress]) -> str:
    """Return the interface that has the address; ``lo`` for all of 127.0.0.0/8."""
    for each in known:
        if each.address == address:
            return each.name
    return "lo" if is_loopback(address) else ""


def published_addresses(
    environ: Mapping[str, str],
    known: tuple[InterfaceAddress, ...],
    own_name: tuple[str, ...] | Unknown,
) -> tuple[PublishedAddress, ...]:
    """Return what gloo and NCCL publish; ``own_name``: the addresses of the host's own name."""
    return _gloo(environ.get("GLOO_SOCKET_IFNAME", ""), known, own_name), _nccl(environ, known)


def _gloo(
    setting: str, known: tuple[InterfaceAddress, ...], own_name: tuple[str, ...] | Unknown
) -> PublishedAddress:
    if setting:
        name = setting.split(",", maxsplit=1)[0]
        interface = _first(each for each in known if each.name == name)
        why = f"GLOO_SOCKET_IFNAME={setting}"
        if interface is None:
            return PublishedAddress(
                library="gloo", address=Unknown(f"{why}: interface {name} is not up"), why=why
            )
        return PublishedAddress(library="gloo", address=interface.address, interface=name, why=why)
    host = socket.gethostname()
    if isinstance(own_name, Unknown):
        return PublishedAddress(
            library="gloo",
            address="127.0.0.1",
            interface="lo",
            why=f"the host's own name {host} does not resolve",
        )
    usable = next((address for address in own_name if is_own(address)), None)
    if usable is None:
        addresses = ", ".join(own_name) or "nothing"
        why = f"the host's own name {host} resolves to {addresses}, not to an address of this host"
        return PublishedAddress(library="gloo", address="127.0.0.1", interface="lo", why=why)
    why = f"the host's own name {host} resolves to it"
    return PublishedAddress(
        library="gloo", address=usable, interface=interface_of(usable, known), why=why
    )


def _nccl(environ: Mapping[str, str], known: tuple[InterfaceAddress, ...]) -> PublishedAddress:
    setting = environ.get("NCCL_SOCKET_IFNAME", "")
    family = {"AF_INET": 4, "AF_INET6": 6}.get(environ.get("NCCL_SOCKET_FAMILY", ""))
    candidates = [
        each
        for each in known
        if family is None or ipaddress.ip_address(each.address).version == family
    ]
    if setting:
        why = f"NCCL_SOCKET_IFNAME={setting}"
        interface = _first(each for each in candidates if _is_selected(setting, each.name))
        if interface is None:
            return PublishedAddress(
                library="NCCL", address=Unknown(f"{why} matches no interface that is up"), why=why
            )
        return PublishedAddress(
            library="NCCL", address=interface.address, interface=interface.name, why=why
        )
    for why, choose in (
        ("InfiniBand interfaces are preferred", lambda name: name.startswith("ib")),
        (
            "the first interface that is neither docker nor loopback",
            lambda name: not name.startswith(("docker", "lo")),
        ),
        ("only docker interfaces are up", lambda name: name.startswith("docker")),
        ("only loopback is up", lambda name: name.startswith("lo")),
    ):
        interface = _first(each for each in candidates if choose(each.name))
        if interface is not None:
            return PublishedAddress(
                library="NCCL", address=interface.address, interface=interface.name, why=why
            )
    return PublishedAddress(library="NCCL", address=Unknown("no interface is up"))


def _is_selected(setting: str, name: str) -> bool:
    """Return whether NCCL_SOCKET_IFNAME selects this interface."""
    others, exact = setting.startswith("^"), "=" in setting[:2]
    parts = setting.lstrip("^=").split(",")
    fits = name in parts if exact else any(name.startswith(part) for part in parts if part)
    return fits != others


def _first(interface: Iterable[InterfaceAddress]) -> InterfaceAddress | None:
    """Return the first, which is IPv4 before IPv6 in the kernel's order."""
    return next(iter(interface), None)

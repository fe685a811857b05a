"""The addresses of this host: which interfaces it has, which way leads to another address, what gloo and NCCL publish.

gloo takes GLOO_SOCKET_IFNAME or what the host's own name means, and loopback where that is of no use
(torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice). NCCL takes NCCL_SOCKET_IFNAME (beginnings of
names, ``=`` for whole ones, ``^`` for all others), else ib*, then any but docker* and lo, then docker*, then lo
(nccl: src/misc/socket.cc, ncclFindInterfaces).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

from holdfast.facts.reach import Interface, Published
from holdfast.facts.reach.frames import plain
from holdfast.findings import Unknown


def interfaces() -> tuple[Interface, ...]:
    """Those that are up, an entry an address; link-local IPv6 addresses are left out."""
    states = psutil.net_if_stats()
    return tuple(
        Interface(name, plain(entry.address), states[name].mtu)
        for name, entries in psutil.net_if_addrs().items()
        if name in states and states[name].isup
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and not entry.address.lower().startswith("fe80")
    )


def source_to(address: str) -> str:
    """The own address from which packets to ``address`` go; empty where there is no way. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return plain(str(probe.getsockname()[0]))
    return ""


def is_own(address: str) -> bool:
    """Can something listen at this address here?"""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def is_loopback(address: str) -> bool:
    """127.0.0.0/8 and ::1."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def interface_of(address: str, known: Iterable[Interface]) -> str:
    """The name of the interface that has the address; ``lo`` for all of 127.0.0.0/8."""
    for each in known:
        if each.address == address:
            return each.name
    return "lo" if is_loopback(address) else ""


def published(
    environ: Mapping[str, str], known: tuple[Interface, ...], own_name: tuple[str, ...] | Unknown
) -> tuple[Published, ...]:
    """What gloo and NCCL of this host would give to their peers. ``own_name``: what the host's own name means here."""
    return _gloo(environ.get("GLOO_SOCKET_IFNAME", ""), known, own_name), _nccl(environ, known)


def _gloo(wanted: str, known: tuple[Interface, ...], own_name: tuple[str, ...] | Unknown) -> Published:
    if wanted:
        name = wanted.split(",", maxsplit=1)[0]
        found = _first(each for each in known if each.name == name)
        why = f"GLOO_SOCKET_IFNAME={wanted}"
        if found is None:
            return Published(who="gloo", address=Unknown(f"{why}, and no interface {name} is up here"), why=why)
        return Published(who="gloo", address=found.address, interface=name, why=why)
    host = socket.gethostname()
    if isinstance(own_name, Unknown):
        return Published(who="gloo", address="127.0.0.1", interface="lo", why=f"the own name {host} means nothing here")
    usable = next((address for address in own_name if is_own(address)), None)
    if usable is None:
        why = f"the own name {host} means {', '.join(own_name) or 'nothing'}, which is no address of this host"
        return Published(who="gloo", address="127.0.0.1", interface="lo", why=why)
    why = f"the own name {host} means it"
    return Published(who="gloo", address=usable, interface=interface_of(usable, known), why=why)


def _nccl(environ: Mapping[str, str], known: tuple[Interface, ...]) -> Published:
    wanted = environ.get("NCCL_SOCKET_IFNAME", "")
    family = {"AF_INET": 4, "AF_INET6": 6}.get(environ.get("NCCL_SOCKET_FAMILY", ""))
    fit = [each for each in known if family is None or ipaddress.ip_address(each.address).version == family]
    if wanted:
        why = f"NCCL_SOCKET_IFNAME={wanted}"
        found = _first(each for each in fit if _chosen(wanted, each.name))
        if found is None:
            return Published(who="NCCL", address=Unknown(f"{why}, and no interface that is up here fits"), why=why)
        return Published(who="NCCL", address=found.address, interface=found.name, why=why)
    for why, choose in (
        ("an InfiniBand interface comes first", lambda name: name.startswith("ib")),
        ("the first interface that is neither docker nor loopback", lambda name: not name.startswith(("docker", "lo"))),
        ("there is only docker's", lambda name: name.startswith("docker")),
        ("there is only loopback", lambda name: name.startswith("lo")),
    ):
        found = _first(each for each in fit if choose(each.name))
        if found is not None:
            return Published(who="NCCL", address=found.address, interface=found.name, why=why)
    return Published(who="NCCL", address=Unknown("no interface is up here"))


def _chosen(wanted: str, name: str) -> bool:
    """Does NCCL_SOCKET_IFNAME mean this interface?"""
    others, exact = wanted.startswith("^"), "=" in wanted[:2]
    parts = wanted.lstrip("^=").split(",")
    fits = name in parts if exact else any(name.startswith(part) for part in parts if part)
    return fits != others


def _first(found: Iterable[Interface]) -> Interface | None:
    """IPv4 before IPv6 on the first interface, as the kernel lists them."""
    return next(iter(found), None)

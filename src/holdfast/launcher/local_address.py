"""The address of this host that other nodes can connect to.

torch publishes ``socket.getfqdn()``, which other hosts often cannot resolve (containers), or
resolve to themselves (equal names) or to loopback (Debian writes 127.0.1.1 to /etc/hosts).
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

#: Never assigned (RFC 5737): only the route to it is looked up, which is the default route.
_OUTSIDE = "192.0.2.1"


def published_address(endpoint: str) -> str | None:
    """Return this host's address on the route to the host ``endpoint``; None if there is no route.

    If the endpoint's name leads to loopback, it is this host, whose address on the default route or
    of the first interface is returned; not for ``localhost``, where all nodes are on this host.
    """
    sources = [_source(address) for address in _resolve(endpoint)]
    usable = [each for each in sources if each and not _is_loopback(each)]
    if usable:
        return usable[0]
    if endpoint == "localhost" or _is_loopback(endpoint):
        return next(filter(None, sources), None)
    return _source(_OUTSIDE) or _first_interface_address() if sources else None


def _resolve(host: str) -> list[str]:
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
        return list(dict.fromkeys(str(each[4][0]) for each in found))
    return []


def _source(address: str) -> str:
    """Return the local address of the route to ``address``, empty without one. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return ""


def _first_interface_address() -> str | None:
    import psutil  # noqa: PLC0415 - 7 ms, only without a route

    entries = (entry for each in psutil.net_if_addrs().values() for entry in each)
    ipv4 = (entry.address for entry in entries if entry.family == socket.AF_INET)
    return next((address for address in ipv4 if not _is_loopback(address)), None)


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False

"""Name resolution with the C library's resolver, as other programs do it, with a timeout.

The resolver may wait half a minute for an unreachable server and cannot be interrupted, so that
each lookup runs in a thread that may be abandoned. A recorded tree has only its /etc/hosts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.interfaces import own_addresses
from holdfast.host.processes import proc

_T = TypeVar("_T")
LIMIT_S = 3.0
_HOST_NOT_FOUND = 1  # of <netdb.h>
_NO_SUCH_NAME = "no such name"
_ABSENT = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class NameLookup(msgspec.Struct, frozen=True, kw_only=True):
    """The resolver's answer for a name: its addresses, or the ``failure`` in words."""

    name: str
    addresses: tuple[str, ...] = ()
    failure: str = ""
    elapsed_s: float = 0.0

    @property
    def is_known_absent(self) -> bool:
        """Whether the resolver answered that the name does not exist."""
        return self.failure == _NO_SUCH_NAME


class HostsLine(msgspec.Struct, frozen=True):
    """A line of /etc/hosts: its number, the address, the names."""

    number: int
    address: str
    names: tuple[str, ...]


def read_hosts_file(context: CheckContext) -> tuple[HostsLine, ...] | Unknown:
    """Return the lines of /etc/hosts without comments.

    ``address`` is the first word, valid or not.
    """
    content = proc.read_text(context.path("/etc/hosts"))
    if isinstance(content, Unknown):
        return content
    lines = (
        (number, line.partition("#")[0].split())
        for number, line in enumerate(content.splitlines(), 1)
    )
    return tuple(HostsLine(number, words[0], tuple(words[1:])) for number, words in lines if words)


def is_address(text: str) -> bool:
    """Return whether the text is an IP address, not a name."""
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def resolve_name(context: CheckContext, name: str, limit_s: float = LIMIT_S) -> NameLookup:
    """Return the distinct addresses of a name, in the order in which programs try them."""
    if is_address(name):
        return NameLookup(name=name, addresses=(name,))
    if context.root != "/":
        return _resolve_in_file(context, name)
    started = time.monotonic()
    addresses = _run_with_timeout(limit_s, lambda: _getaddrinfo(name))
    if isinstance(addresses, Unknown):
        return NameLookup(name=name, failure=addresses.why, elapsed_s=time.monotonic() - started)
    elapsed_s = round(time.monotonic() - started, 3)
    return NameLookup(name=name, addresses=addresses, elapsed_s=elapsed_s)


def remote_endpoint_addresses(context: CheckContext, limit_s: float = 1.0) -> tuple[str, ...]:
    """Return the endpoint's addresses if it is another host (a multi-node job).

    Empty if not, or not known.
    """
    if context.endpoint is None:
        return ()
    addresses = resolve_name(context, context.endpoint[0], limit_s).addresses
    own = own_addresses(context)
    is_local = any(
        text in own or (is_address(text) and ip_address(text.partition("%")[0]).is_loopback)
        for text in addresses
    )
    return () if is_local else addresses


def reverse_lookup(context: CheckContext, address: str, limit_s: float = LIMIT_S) -> str | Unknown:
    """Return the resolver's name for an address; empty if it has none."""
    if context.root != "/":
        lines = read_hosts_file(context)
        if isinstance(lines, Unknown):
            return lines
        return next((line.names[0] for line in lines if line.address == address and line.names), "")
    return _run_with_timeout(limit_s, lambda: _gethostbyaddr(address))


def fully_qualified_name(
    context: CheckContext, name: str, limit_s: float = LIMIT_S
) -> str | Unknown:
    """Return ``socket.getfqdn(name)``; in a recorded tree its result with /etc/hosts alone."""
    if context.root == "/":
        return _run_with_timeout(limit_s, lambda: socket.getfqdn(name))
    lines = read_hosts_file(context)
    if isinstance(lines, Unknown):
        return name
    address = _resolve_in_file(context, name).addresses[:1]
    names = next(
        (line.names for line in lines if (line.address,) == address and line.names), (name,)
    )
    return next((alias for alias in names if "." in alias), names[0])


def _resolve_in_file(context: CheckContext, name: str) -> NameLookup:
    lines = read_hosts_file(context)
    if isinstance(lines, Unknown):
        return NameLookup(name=name, failure=lines.why)
    addresses = tuple(dict.fromkeys(line.address for line in lines if name in line.names))
    return NameLookup(name=name, addresses=addresses, failure="" if addresses else _NO_SUCH_NAME)


def _getaddrinfo(name: str) -> tuple[str, ...] | Unknown:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Unknown(_NO_SUCH_NAME if error.errno in _ABSENT else str(error.strerror).lower())
    except UnicodeError:
        return Unknown("not a valid host name")
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _gethostbyaddr(address: str) -> str | Unknown:
    try:
        return socket.gethostbyaddr(address)[0]
    except OSError as error:
        if isinstance(error, socket.herror) and error.errno == _HOST_NOT_FOUND:
            return ""
        return Unknown(
            f"reverse lookup of {address} failed: {str(error.strerror or error).lower()}"
        )


def _run_with_timeout(limit_s: float, lookup: Callable[[], _T | Unknown]) -> _T | Unknown:
    """Return the result of a lookup in a thread, or Unknown after the timeout.

    The thread is abandoned.
    """
    results: SimpleQueue[_T | Unknown] = SimpleQueue()
    Thread(target=lambda: results.put(lookup()), daemon=True).start()
    try:
        return results.get(timeout=limit_s)
    except Empty:
        return Unknown(f"name resolution timed out after {limit_s:g} s")

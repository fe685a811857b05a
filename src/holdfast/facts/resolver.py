"""Names and addresses, asked as every program here asks: the resolver of the C library, bounded in time.

The resolver may wait for a server that is gone for half a minute and cannot be interrupted, so each question has a
thread that nobody waits for. In a recorded tree there is the file /etc/hosts alone.
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

from holdfast.facts import proc
from holdfast.facts.checks import Place
from holdfast.facts.checks.interfaces import own
from holdfast.findings import Unknown

_T = TypeVar("_T")
LIMIT_S = 3.0
_HOST_NOT_FOUND = 1  # of <netdb.h>
_NOT_THERE = "there is no such name"
_ABSENT = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the resolver said of ``asked`` (a name): its addresses, or the ``trouble`` in words."""

    asked: str
    addresses: tuple[str, ...] = ()
    trouble: str = ""
    elapsed_s: float = 0.0

    @property
    def is_known_absent(self) -> bool:
        """The resolver answered, and says that there is no such name."""
        return self.trouble == _NOT_THERE


class Line(msgspec.Struct, frozen=True):
    """A line of /etc/hosts: its number, the address, the names."""

    number: int
    address: str
    names: tuple[str, ...]


def hosts(place: Place) -> tuple[Line, ...] | Unknown:
    """The lines of /etc/hosts that are no comment; a line without an address has its first word in place of it."""
    content = proc.text(place.path("/etc/hosts"))
    if isinstance(content, Unknown):
        return content
    parts = ((number, line.partition("#")[0].split()) for number, line in enumerate(content.splitlines(), 1))
    return tuple(Line(number, words[0], tuple(words[1:])) for number, words in parts if words)


def is_address(text: str) -> bool:
    """It is an address, and no name."""
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def ask(place: Place, name: str, limit_s: float = LIMIT_S) -> Answer:
    """The addresses of a name, each once, in the order in which programs try them."""
    if is_address(name):
        return Answer(asked=name, addresses=(name,))
    if place.root != "/":
        return _in_file(place, name)
    begun = time.monotonic()
    found = _within(limit_s, lambda: _resolved(name))
    if isinstance(found, Unknown):
        return Answer(asked=name, trouble=found.why, elapsed_s=time.monotonic() - begun)
    return Answer(asked=name, addresses=found, elapsed_s=round(time.monotonic() - begun, 3))


def endpoint_elsewhere(place: Place, limit_s: float = 1.0) -> tuple[str, ...]:
    """The endpoint's addresses where they are another host's: there will be several. Empty if not known."""
    if place.endpoint is None:
        return ()
    found = ask(place, place.endpoint[0], limit_s).addresses
    here = own(place)
    own_one = any(
        text in here or (is_address(text) and ip_address(text.partition("%")[0]).is_loopback) for text in found
    )
    return () if own_one else found


def called(place: Place, address: str, limit_s: float = LIMIT_S) -> str | Unknown:
    """The name that the resolver gives for an address; empty where it says that there is none."""
    if place.root != "/":
        lines = hosts(place)
        if isinstance(lines, Unknown):
            return lines
        return next((line.names[0] for line in lines if line.address == address and line.names), "")
    return _within(limit_s, lambda: _named(address))


def full_name(place: Place, name: str, limit_s: float = LIMIT_S) -> str | Unknown:
    """What ``socket.getfqdn(name)`` gives here; in a recorded tree what it would give with /etc/hosts alone."""
    if place.root == "/":
        return _within(limit_s, lambda: socket.getfqdn(name))
    lines = hosts(place)
    if isinstance(lines, Unknown):
        return name
    address = _in_file(place, name).addresses[:1]
    names = next((line.names for line in lines if (line.address,) == address and line.names), (name,))
    return next((each for each in names if "." in each), names[0])


def _in_file(place: Place, name: str) -> Answer:
    lines = hosts(place)
    if isinstance(lines, Unknown):
        return Answer(asked=name, trouble=lines.why)
    found = tuple(dict.fromkeys(line.address for line in lines if name in line.names))
    return Answer(asked=name, addresses=found, trouble="" if found else _NOT_THERE)


def _resolved(name: str) -> tuple[str, ...] | Unknown:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Unknown(_NOT_THERE if error.errno in _ABSENT else str(error.strerror).lower())
    except UnicodeError:
        return Unknown("it cannot be a name")
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


def _named(address: str) -> str | Unknown:
    try:
        return socket.gethostbyaddr(address)[0]
    except socket.herror as error:
        return (
            "" if error.errno == _HOST_NOT_FOUND else Unknown(f"the name of {address}: {str(error.strerror).lower()}")
        )
    except OSError as error:
        return Unknown(f"the name of {address}: {str(error.strerror or error).lower()}")


def _within(limit_s: float, question: Callable[[], _T | Unknown]) -> _T | Unknown:
    """The answer of a thread, or Unknown once the time is over; the thread is left to itself."""
    answers: SimpleQueue[_T | Unknown] = SimpleQueue()
    Thread(target=lambda: answers.put(question()), daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except Empty:
        return Unknown(f"the resolver gave no answer within {limit_s:g} s")

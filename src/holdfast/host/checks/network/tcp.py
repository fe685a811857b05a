"""Kernel limits of TCP: buffers, backlog and connection tracking, and the fastest interface."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network import interfaces
from holdfast.host.processes import proc

_SYSCTL = "/proc/sys/net"
_RECEIVE, _SEND = f"{_SYSCTL}/ipv4/tcp_rmem", f"{_SYSCTL}/ipv4/tcp_wmem"
_BACKLOG = f"{_SYSCTL}/core/somaxconn"
_TRACKED = f"{_SYSCTL}/netfilter/nf_conntrack_count"
_MAX_TRACKED = f"{_SYSCTL}/netfilter/nf_conntrack_max"


class TcpResult(CheckResult, frozen=True, kw_only=True):
    """The largest buffers in bytes, connections waiting for accept, and tracked connections.

    ``tracked`` and ``max_tracked`` are None if the kernel tracks none. ``interface`` is the fastest
    one that is up, "" if no speed is known.
    """

    receive_bytes: int | Unknown
    send_bytes: int | Unknown
    backlog: int | Unknown
    tracked: int | None = None
    max_tracked: int | None = None
    interface: str = ""
    speed_mbit: int = 0

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        facts = [
            check_fact("largest TCP receive buffer, bytes", self.receive_bytes, _RECEIVE),
            check_fact("largest TCP send buffer, bytes", self.send_bytes, _SEND),
            check_fact("connections waiting for accept", self.backlog, _BACKLOG),
        ]
        if self.max_tracked is not None:
            tracked = f"{self.tracked} of {self.max_tracked}"
            facts.append(check_fact("tracked connections", tracked, _TRACKED))
        if self.interface:
            speed = f"{self.speed_mbit / 1000:g} Gbit/s"
            facts.append(check_fact(f"speed of {self.interface}", speed, "/sys/class/net"))
        return tuple(facts)


def inspect(context: CheckContext) -> TcpResult:
    """Read the settings of this network namespace."""
    listed = interfaces.inspect(context).interfaces
    up = [] if isinstance(listed, Unknown) else [each for each in listed if each.up is True]
    fastest = max(up, key=lambda each: each.speed_mbit or 0, default=None)
    speed = (fastest.speed_mbit or 0) if fastest else 0
    return TcpResult(
        receive_bytes=_largest(context.path(_RECEIVE)),
        send_bytes=_largest(context.path(_SEND)),
        backlog=proc.read_number(context.path(_BACKLOG)),
        tracked=_known(context.path(_TRACKED)),
        max_tracked=_known(context.path(_MAX_TRACKED)),
        interface=fastest.name if fastest and speed > 0 else "",
        speed_mbit=max(speed, 0),
    )


def _largest(path: Path) -> int | Unknown:
    """Return the last of the three numbers: the limit of the kernel's automatic size."""
    text = proc.read_text(path)
    if isinstance(text, Unknown):
        return text
    words = text.split()
    if len(words) != 3 or not words[2].isascii() or not words[2].isdigit():
        return Unknown(f"{path} has not three numbers")
    return int(words[2][:18])


def _known(path: Path) -> int | None:
    value = proc.read_number(path)
    return value if isinstance(value, int) else None

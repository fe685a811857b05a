"""Name the link on which a call of the benchmark failed, from the error of its backend."""

from __future__ import annotations

import ipaddress
import re

from holdfast.core.measurements import BenchHost

#: gloo: ``Connection closed by peer [10.0.0.2]:41235``; NCCL: ``from remote 10.0.0.2<41235>``.
_PEER = re.compile(r"\[([0-9a-fA-F.:]{2,45})\]:\d+|\b(\d{1,3}(?:\.\d{1,3}){3})(?:<\d+>|:\d+)")


def describe_broken_link(error: str, host: BenchHost) -> str:
    """Return "the link from node1 (eth0) to 10.0.0.2", or "" if the error names no other host."""
    match = _PEER.search(error[:10_000])
    if match is None:
        return ""
    try:
        address = ipaddress.ip_address(match[1] or match[2])
    except ValueError:
        return ""
    if address.is_loopback:
        return ""
    interface = f" ({host.interface})" if host.interface else ""
    return f"the link from {host.name}{interface} to {address}"

"""Do the hosts send packets of one size?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.reach import Copy, Gathered
from holdfast.findings import Finding, Level
from holdfast.rules.differences import Property, differs

_MTU = Property("the MTU", "interfaces", str, "mtu-black-hole", Level.WARNING)


def judge(gathered: Gathered) -> Iterator[Finding]:
    """Of the interfaces whose addresses gloo publishes. TCP agrees on the smaller size; RDMA and datagrams do not."""
    copies = [each.copy for each in gathered.present]
    yield from differs(_MTU, {copy.label: f"{mtu} bytes" for copy in copies if (mtu := _mtu(copy)) is not None})


def _mtu(copy: Copy) -> int | None:
    used = next((each.interface for each in copy.published if each.who == "gloo"), "")
    return next((each.mtu for each in copy.interfaces if each.name == used), None)

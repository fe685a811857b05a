"""Copies of the command in threads of one process, each with a loop of its own, that meet at 127.0.0.1."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.facts.reach import Gathered, HostReport
from holdfast.facts.reach.meeting import Muster, meet


def muster(port, node, nodes, **different):
    """What a copy is told; the range is that of the endpoint alone, so that copies on one host do not quarrel."""
    told = {"host": "127.0.0.1", "port": port, "node": node, "nodes": nodes, "wait_s": 3, "ports": (port, port)}
    return Muster(**told | different)


def together(musters, clocks=()):
    """The outcomes of these copies, started at once; what was gathered instead of what was judged."""
    clocks = [*clocks, *[0.0] * (len(musters) - len(clocks))]

    def copy(told, ahead):
        async def report():
            return HostReport(host=f"host{told.node}", at=time.time(), environ={"NCCL_DEBUG": str(told.node)})

        return asyncio.run(meet(told, report, msgspec.json.encode, lambda: time.time() + ahead))

    with ThreadPoolExecutor(len(musters)) as pool:
        return list(pool.map(copy, musters, clocks))


def gathered(outcome):
    """What a copy was told."""
    return msgspec.json.decode(outcome.content, type=Gathered)

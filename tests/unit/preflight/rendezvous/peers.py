"""Peers in threads of one process, each with its own event loop; they rendezvous at 127.0.0.1."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.preflight.rendezvous import Observations, PeerReport
from holdfast.preflight.rendezvous.rendezvous import RendezvousConfig, run_rendezvous


def config(port, node, nodes, **different):
    """Return a configuration; its port range is only the endpoint's port, so peers on one host do not collide."""
    values = {
        "host": "127.0.0.1",
        "port": port,
        "node": node,
        "nodes": nodes,
        "wait_s": 3,
        "ports": (port, port),
    }
    return RendezvousConfig(**values | different)


def run_peers(configs, clocks=()):
    """Run these peers concurrently; return their outcomes, with the observations as the shared result."""
    clocks = [*clocks, *[0.0] * (len(configs) - len(clocks))]

    def peer(settings, ahead):
        async def report():
            return PeerReport(
                host=f"host{settings.node}",
                at=time.time(),
                environ={"NCCL_DEBUG": str(settings.node)},
            )

        return asyncio.run(
            run_rendezvous(settings, report, msgspec.json.encode, lambda: time.time() + ahead)
        )

    with ThreadPoolExecutor(len(configs)) as pool:
        return list(pool.map(peer, configs, clocks))


def observed(outcome):
    """Return the observations in an outcome."""
    return msgspec.json.decode(outcome.content, type=Observations)

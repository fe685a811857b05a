"""How long collectives take on a cluster, by size, ranks and placement, and how many bytes a setup sends.

A call of S bytes (the larger buffer of a rank, as nccl-tests counts) moves ``share * S`` bytes over the busiest link,
where the share is 2(n-1)/n for all-reduce and (n-1)/n for all-gather, reduce-scatter and all-to-all
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Its time is latency by hops, those bytes over the
bandwidth of the bus, and the filling of a pipeline, which grows with the call to an end: published bandwidths rise more
slowly over sizes than by a line. In a ring over several nodes each byte crosses a border once, over all NICs of a node
together, so that the bus is the slower of the GPU's links and the node's NICs. Where ``holdfast bench`` measured such a
call, its fit counts instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import log2
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.measured.fit import Fit
from holdfast.plan.hardware import Cluster, Links

#: Of a link's rate, what rings reach (A100: 235 of 300 GB/s, H200: 361 of 450; S. Bekman, network/README.md), what they
#: reach where GPUs talk over PCIe, and what they reach of the NICs (H200, 4 nodes: 369 of 400 GB/s; same, todo.md).
RING_SHARE, PCIE_SHARE, NIC_SHARE = 0.80, 0.45, 0.92
#: Slower than this a link is PCIe, in bytes a second.
_PCIE = 64e9
#: The longest time in seconds that filling the pipeline takes inside a node and across, fitted to the same tables.
_FILL_INSIDE_S, _FILL_ACROSS_S = 200e-6, 700e-6
#: Half of it is reached where the bytes alone take this many seconds.
_HALF_INSIDE_S, _HALF_ACROSS_S = 150e-6, 300e-6
#: What a collective takes besides, in seconds: its launch, and the waiting of ranks for each other.
_LAUNCH_S = 25e-6


class Collective(StrEnum):
    """By the names that torch gives them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "sendrecv"


_RINGS = frozenset({Collective.ALL_GATHER, Collective.REDUCE_SCATTER})


class Group(msgspec.Struct, frozen=True):
    """Ranks that call together: how many, and how many of them share a node."""

    ranks: int
    a_node: int

    @property
    def nodes(self) -> int:
        """That it reaches over."""
        return -(-self.ranks // self.a_node)


def placed(cluster: Cluster, ranks: int, stride: int) -> Group:
    """A group whose ranks are ``stride`` apart, where ranks are counted node by node."""
    return Group(ranks, min(ranks, max(1, cluster.per_node // stride)))


def share(collective: Collective, ranks: int) -> float:
    """Of a call's bytes, those that cross the busiest link."""
    if collective is Collective.SEND:
        return 1.0
    rest = (ranks - 1) / ranks
    return 2 * rest if collective is Collective.ALL_REDUCE else rest


def seconds(collective: Collective, nbytes: float, group: Group, links: Links) -> float:
    """How long a call of so many bytes takes when nothing else runs; 0 where there is nobody to talk to."""
    if group.ranks < 2 or nbytes <= 0:
        return 0.0
    if links.measured and (fit := _fit(collective, group, links)) is not None:
        return fit.seconds(nbytes)
    across = group.ranks > group.a_node
    moving = share(collective, group.ranks) * nbytes / bus(collective, group, links)
    fill, half = (_FILL_ACROSS_S, _HALF_ACROSS_S) if across else (_FILL_INSIDE_S, _HALF_INSIDE_S)
    return latency(collective, group, links) + moving + fill * moving / (moving + half)


def bus(collective: Collective, group: Group, links: Links) -> float:
    """Bytes a second on the busiest link, for large calls."""
    inside = links.inside * (RING_SHARE if links.inside > _PCIE else PCIE_SHARE)
    if group.ranks <= group.a_node:
        return max(inside, links.bus) if collective is Collective.ALL_REDUCE else inside
    outside = links.outside * NIC_SHARE
    if collective is Collective.SEND:
        return min(inside, outside)
    if collective is Collective.ALL_TO_ALL:  # each GPU sends what is for other nodes over its own NIC
        return min(inside, outside * (group.ranks - 1) / (group.ranks - group.a_node))
    return min(inside, outside * group.a_node)


def latency(collective: Collective, group: Group, links: Links) -> float:
    """Seconds that even the smallest call takes: a ring's hops, or for all-reduce over nodes those of a tree."""
    if collective is Collective.SEND:
        return _LAUNCH_S + (links.outside_s if group.nodes > 1 else links.inside_s)
    nodes = group.nodes
    if collective is Collective.ALL_REDUCE:
        return _LAUNCH_S + (group.a_node - 1) * links.inside_s + 2 * log2(nodes) * links.outside_s
    return _LAUNCH_S + (group.ranks - nodes) * links.inside_s + (nodes - 1) * links.outside_s


def hierarchical(nbytes: float, group: Group, links: Links) -> float:
    """All-reduce in three: reduce-scatter in the node, all-reduce of each part across nodes, all-gather in the node."""
    if group.nodes == 1 or group.a_node == 1:
        return seconds(Collective.ALL_REDUCE, nbytes, group, links)
    node, across = Group(group.a_node, group.a_node), Group(group.nodes, 1)
    inside = seconds(Collective.REDUCE_SCATTER, nbytes, node, links) + seconds(
        Collective.ALL_GATHER, nbytes, node, links
    )
    return inside + seconds(Collective.ALL_REDUCE, nbytes / group.a_node, across, links)


def calibrated(links: Links, fits: Sequence[Fit]) -> Links:
    """The links as ``holdfast bench`` found them, by the fits of torch's own collectives.

    What its largest group in one host, and over hosts, reached of the bus stands for groups of all sizes there; a group
    of just as many ranks and hosts goes by the fit itself.
    """
    fits = [each for each in fits if each.way == "torch" and each.ranks > 1]
    inside = _reached(each for each in fits if each.hosts == 1 and each.collective in _RINGS)
    summed = _reached(each for each in fits if each.hosts == 1 and each.collective == Collective.ALL_REDUCE)
    across = _reached(each for each in fits if each.hosts > 1 and each.collective in {*_RINGS, Collective.ALL_REDUCE})
    found = replace(links, measured=tuple(fits), bus=summed.rate if summed else links.bus)
    ring = inside or summed
    if ring is not None:
        rate = ring.rate / RING_SHARE
        found = replace(found, inside=rate if rate > _PCIE else min(ring.rate / PCIE_SHARE, _PCIE))
    if across is not None:
        found = replace(found, outside=across.rate / (across.a_host * NIC_SHARE))
    return found


class _Reached(NamedTuple):
    """Bytes a second over the busiest link, and how many ranks a host had."""

    rate: float
    a_host: float


def _reached(fits: Iterable[Fit]) -> _Reached | None:
    """What the largest group reached, in the collective that was fastest there."""
    fits = list(fits)
    most = max((each.ranks for each in fits), default=0)
    rates = (
        _Reached(each.bandwidth * share(Collective(each.collective), each.ranks), each.ranks / each.hosts)
        for each in fits
        if each.ranks == most
    )
    return max(rates, default=None)


def _fit(collective: Collective, group: Group, links: Links) -> Fit | None:
    """The newest fit of such a call, by torch's own way."""
    for each in reversed(links.measured):
        called = (each.collective, each.way, each.ranks, each.hosts)
        if called == (collective.value, "torch", group.ranks, group.nodes):
            return each
    return None

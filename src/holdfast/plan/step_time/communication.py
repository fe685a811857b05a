"""Time of collectives on a cluster by size, ranks and placement.

A call of S bytes (the larger buffer of a rank, as in nccl-tests) moves ``bus_factor * S`` bytes
over the busiest link; the factor is 2(n-1)/n for all-reduce and (n-1)/n for all-gather,
reduce-scatter and all-to-all (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
Its time is the latency of all hops, those bytes over the bus bandwidth, and the time to fill the
pipeline, which saturates with size: published bandwidths rise more slowly than a line. In a ring
over several nodes each byte crosses a node boundary once, over all NICs of a node together, so the
bus is the slower of the GPU's links and the node's NICs. If ``holdfast bench`` measured such a
call, its fit takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import log2
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.plan.hardware import Cluster, LinkRates

#: Shares of the link rate: of rings (A100: 235 of 300 GB/s, H200: 361 of 450; S. Bekman,
#: network/README.md), of GPUs over PCIe, and of NICs (H200, 4 nodes: 369 of 400 GB/s; same,
#: todo.md).
RING_SHARE, PCIE_SHARE, NIC_SHARE = 0.80, 0.45, 0.92
#: Slower links are PCIe, in bytes per second.
_PCIE = 64e9
#: Longest time in seconds to fill the pipeline in a node and across nodes, fitted to the same
#: tables.
_FILL_INSIDE_S, _FILL_ACROSS_S = 200e-6, 700e-6
#: Half of it is reached if the bytes alone take this many seconds.
_HALF_INSIDE_S, _HALF_ACROSS_S = 150e-6, 300e-6
#: Seconds of launching a collective and of waiting for other ranks.
_LAUNCH_S = 25e-6


class CollectiveKind(StrEnum):
    """Collectives by torch's names."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "sendrecv"


_RINGS = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})


class PlacedGroup(msgspec.Struct, frozen=True):
    """Communicating ranks, and how many of them share a node."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        """Return the nodes that the group spans."""
        return -(-self.ranks // self.per_node)


def place_group(cluster: Cluster, ranks: int, stride: int) -> PlacedGroup:
    """Return a group of ranks that are ``stride`` apart, if ranks are numbered node by node."""
    return PlacedGroup(ranks, min(ranks, max(1, cluster.per_node // stride)))


def bus_factor(collective: CollectiveKind, ranks: int) -> float:
    """Return the share of a call's bytes that cross the busiest link."""
    if collective is CollectiveKind.SEND:
        return 1.0
    rest = (ranks - 1) / ranks
    return 2 * rest if collective is CollectiveKind.ALL_REDUCE else rest


def collective_time(
    collective: CollectiveKind, nbytes: float, group: PlacedGroup, links: LinkRates
) -> float:
    """Return the seconds of a call without concurrent work; 0 for a single rank."""
    if group.ranks < 2 or nbytes <= 0:
        return 0.0
    if links.measured and (fit := _find_fit(collective, group, links)) is not None:
        return fit.seconds(nbytes)
    across = group.ranks > group.per_node
    transfer = (
        bus_factor(collective, group.ranks) * nbytes / bus_bandwidth(collective, group, links)
    )
    fill, half = (_FILL_ACROSS_S, _HALF_ACROSS_S) if across else (_FILL_INSIDE_S, _HALF_INSIDE_S)
    return (
        collective_latency(collective, group, links)
        + transfer
        + fill * transfer / (transfer + half)
    )


def bus_bandwidth(collective: CollectiveKind, group: PlacedGroup, links: LinkRates) -> float:
    """Return bytes per second on the busiest link, for large calls."""
    intra_node = links.intra_node * (RING_SHARE if links.intra_node > _PCIE else PCIE_SHARE)
    bus = links.bus
    if links.mesh:  # only the links between the group's GPUs are used
        used = (min(group.ranks, group.per_node, links.mesh) - 1) / (links.mesh - 1)
        intra_node, bus = intra_node * (used or 1.0), bus * (used or 1.0)
    if group.ranks <= group.per_node:
        return max(intra_node, bus) if collective is CollectiveKind.ALL_REDUCE else intra_node
    inter_node = links.inter_node * NIC_SHARE
    if collective is CollectiveKind.SEND:
        return min(intra_node, inter_node)
    if collective is CollectiveKind.ALL_TO_ALL:  # each GPU sends over its own NIC
        return min(intra_node, inter_node * (group.ranks - 1) / (group.ranks - group.per_node))
    return min(intra_node, inter_node * group.per_node)


def collective_latency(collective: CollectiveKind, group: PlacedGroup, links: LinkRates) -> float:
    """Return the seconds of the smallest call: its hops in a ring or tree.

    A tree is used for all-reduce over several nodes.
    """
    if collective is CollectiveKind.SEND:
        return _LAUNCH_S + (
            links.inter_node_latency_s if group.nodes > 1 else links.intra_node_latency_s
        )
    nodes = group.nodes
    if collective is CollectiveKind.ALL_REDUCE:
        return (
            _LAUNCH_S
            + (group.per_node - 1) * links.intra_node_latency_s
            + 2 * log2(nodes) * links.inter_node_latency_s
        )
    return (
        _LAUNCH_S
        + (group.ranks - nodes) * links.intra_node_latency_s
        + (nodes - 1) * links.inter_node_latency_s
    )


def calibrate_links(links: LinkRates, fits: Sequence[AlphaBetaFit]) -> LinkRates:
    """Return the links as ``holdfast bench`` measured them, by the fits of torch's collectives.

    The rate of its largest group in one host, and across hosts, applies to groups of all sizes
    there; a group of the same ranks and hosts uses the fit itself.
    """
    fits = [fit for fit in fits if fit.way == "torch" and fit.ranks > 1]
    intra_node_rate = _measured_rate(
        fit for fit in fits if fit.hosts == 1 and fit.collective in _RINGS
    )
    all_reduce_rate = _measured_rate(
        fit for fit in fits if fit.hosts == 1 and fit.collective == CollectiveKind.ALL_REDUCE
    )
    inter_node_rate = _measured_rate(
        fit
        for fit in fits
        if fit.hosts > 1 and fit.collective in {*_RINGS, CollectiveKind.ALL_REDUCE}
    )
    measured = replace(
        links, measured=tuple(fits), bus=all_reduce_rate.rate if all_reduce_rate else links.bus
    )
    node_rate = intra_node_rate or all_reduce_rate
    if node_rate is not None:
        rate = node_rate.rate / RING_SHARE
        measured = replace(
            measured, intra_node=rate if rate > _PCIE else min(node_rate.rate / PCIE_SHARE, _PCIE)
        )
    if inter_node_rate is not None:
        measured = replace(
            measured, inter_node=inter_node_rate.rate / (inter_node_rate.ranks_per_host * NIC_SHARE)
        )
    return measured


class _MeasuredRate(NamedTuple):
    """Bytes per second over the busiest link, and ranks per host."""

    rate: float
    ranks_per_host: float


def _measured_rate(fits: Iterable[AlphaBetaFit]) -> _MeasuredRate | None:
    """Return the rate of the largest group in its fastest collective."""
    fits = list(fits)
    max_ranks = max((fit.ranks for fit in fits), default=0)
    rates = (
        _MeasuredRate(
            fit.bandwidth * bus_factor(CollectiveKind(fit.collective), fit.ranks),
            fit.ranks / fit.hosts,
        )
        for fit in fits
        if fit.ranks == max_ranks
    )
    return max(rates, default=None)


def _find_fit(
    collective: CollectiveKind, group: PlacedGroup, links: LinkRates
) -> AlphaBetaFit | None:
    """Return the newest fit of such a call by torch's implementation."""
    for fit in reversed(links.measured):
        key = (fit.collective, fit.way, fit.ranks, fit.hosts)
        if key == (collective.value, "torch", group.ranks, group.nodes):
            return fit
    return None

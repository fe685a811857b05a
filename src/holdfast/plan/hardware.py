"""Clusters: the GPUs, GPUs per node, nodes, and links."""

from __future__ import annotations

import re

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.plan.gpus import Gpu, find_gpu

#: Default GPUs per node.
DEFAULT_NODE_SIZE = 8
_MAX_GPUS = 1 << 20
_GIB = 1 << 30
#: Host memory that a usual node has per GPU: three times the GPU's, at most 256 GiB (DGX A100 and
#: H100: 256; p4d: 144; p3dn: 96).
_HOST_MEMORY_RATIO = 3
_MAX_HOST_GIB_PER_GPU = 256
#: "2 x 8 A100-80G", "16xH100-80G/8", "4 V100", "H100".
_TIMES = r"\s*[x\u00d7*]\s*"
_PART_PATTERN = re.compile(
    rf"(?:(?P<nodes>\d{{1,12}}){_TIMES}(?=\d{{1,12}}[\sx\u00d7*]))?"
    rf"(?:(?P<count>\d{{1,12}})(?:{_TIMES}|\s+))?"
    r"(?P<gpu>[a-z][^/]*|\d{4}[^/]*?)(?:/\s*(?P<node>\d{1,12}))?",
    re.IGNORECASE,
)
#: Network bandwidth of a node: bits per second, or bytes with a capital B.
_BANDWIDTH_PATTERN = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(Gb(?:it)?(?:/s|ps)|GB(?:/s|ps))")
_EXAMPLES = "use e.g. 2 x 8 A100-80G, 16xH100-80G/8, or 2 A100-80G + 2 V100-32G"


class LinkRates(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU can send per direction within its node and between nodes, in bytes per second.

    Latencies are those of one hop in seconds, between NCCL's values for its protocols LL128 and
    Simple (src/graph/tuning.cc: 1.9 and 3.4 us over NVLink, 4 and 14 over the network). ``bus``:
    the all-reduce rate within a node whose switches reduce (0: they do not); ``mesh``: the GPUs
    that a full mesh of links connects (0: a switch connects them). ``measured``: fits of
    ``holdfast bench``, which take precedence over the tables.
    """

    intra_node: float
    inter_node: float
    intra_node_latency_s: float = 2.6e-6
    inter_node_latency_s: float = 9e-6
    bus: float = 0.0
    mesh: int = 0
    measured: tuple[AlphaBetaFit, ...] = ()

    @classmethod
    def for_gpu(cls, kind: Gpu) -> LinkRates:
        """Return the links of a usual node of such GPUs."""
        return cls(
            intra_node=kind.intra_node,
            inter_node=kind.network,
            bus=kind.bus,
            mesh=kind.domain if kind.mesh else 0,
        )


class Cluster(msgspec.Struct, frozen=True):
    """``nodes`` equal nodes, each with ``per_node`` GPUs of one kind.

    ``host_gib``: memory of a node's host in GiB, 0 if it is that of a usual node.
    """

    gpu: Gpu
    per_node: int
    nodes: int
    links: LinkRates
    host_gib: float = 0.0

    def __post_init__(self) -> None:
        if not (self.per_node >= 1 and self.nodes >= 1 and self.per_node * self.nodes <= _MAX_GPUS):
            raise InvalidValue(
                "the cluster", why=f"{self.nodes} nodes of {self.per_node} GPUs are not supported"
            )
        if min(self.links.intra_node, self.links.inter_node) <= 0:
            raise InvalidValue("the links of the cluster", why="bandwidths must be above 0")

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.per_node * self.nodes

    @property
    def host_memory(self) -> int:
        """Return the bytes of host memory of one node, of a usual node if unknown."""
        usual = min(_HOST_MEMORY_RATIO * self.gpu.memory_gib, _MAX_HOST_GIB_PER_GPU)
        return round((self.host_gib or usual * self.per_node) * _GIB)

    @property
    def host_memory_per_rank(self) -> int:
        """Return the share of one rank in its node's host memory, in bytes."""
        return self.host_memory // self.per_node

    @classmethod
    def from_gpus(
        cls, kind: Gpu | str, gpus: int, per_node: int | None = None, links: LinkRates | None = None
    ) -> Cluster:
        """Return ``gpus`` of a kind in full nodes, or in one partial node.

        The default node size is what the GPU's links connect: 8, or all that evenly fill racks of
        72.

        Raises:
            UnknownName: no such GPU.
            InvalidValue: an invalid number.
        """
        gpu_kind = find_gpu(kind) if isinstance(kind, str) else kind
        if per_node is None:
            per_node = _default_node_size(gpu_kind, gpus)
        if gpus < 1 or per_node < 1:
            raise InvalidValue(
                f"{gpus} GPUs in nodes of {per_node}",
                why="at least one GPU is required",
                next_step=_EXAMPLES,
            )
        node = min(gpus, per_node)
        if gpus % node:
            whole = gpus // node * node
            raise InvalidValue(
                f"{gpus} GPUs in nodes of {per_node}",
                why="they do not fill the nodes",
                next_step=f"say how many a node has (…/{per_node}), or take {whole} or "
                f"{whole + node}",
            )
        return cls(gpu_kind, node, gpus // node, links or LinkRates.for_gpu(gpu_kind))

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Parse a cluster of one kind: "2 x 8 A100-80G", "16xH100-80G/8", "4 V100".

        An optional "@ 400 Gbit/s" is the bandwidth of a node's network.

        Raises:
            UnknownName: no such GPU.
            InvalidValue: a syntax error, or several kinds of GPU.
        """
        clusters = parse_clusters(text)
        if len(clusters) > 1:
            raise InvalidValue(
                f"the cluster {text[:100]!r}",
                why="only one kind of GPU is supported here",
                next_step=_EXAMPLES,
            )
        return clusters[0]

    def resized(self, gpus: int) -> Cluster:
        """Return the cluster with another number of GPUs: equal nodes, or one partial node."""
        cluster = Cluster.from_gpus(self.gpu, gpus, self.per_node, self.links)
        return msgspec.structs.replace(cluster, host_gib=self.host_gib)

    def __str__(self) -> str:
        return f"{self.nodes} x {self.per_node} {self.gpu.name}"


def _default_node_size(kind: Gpu, gpus: int) -> int:
    """Return the GPUs per node, or per rack if racks can be filled evenly."""
    if kind.domain <= DEFAULT_NODE_SIZE:
        return DEFAULT_NODE_SIZE
    return next(
        (size for size in range(min(kind.domain, gpus), DEFAULT_NODE_SIZE, -1) if gpus % size == 0),
        DEFAULT_NODE_SIZE,
    )


def parse_clusters(text: str) -> tuple[Cluster, ...]:
    """Parse clusters joined by "+", "and" or a comma: "2 A100-80G + 2 V100-32G".

    Raises:
        UnknownName: no such GPU.
        InvalidValue: a syntax error.
    """
    parts = [part.strip() for part in re.split(r"\+|,|;|\band\b", text[:1000])]
    return tuple(_parse_part(part, text) for part in parts)


def _parse_part(part: str, text: str) -> Cluster:
    part, separator, bandwidth = part.partition("@")
    matched = _PART_PATTERN.fullmatch(part.strip())
    if matched is None:
        raise InvalidValue(
            f"the cluster {text[:100]!r}", why=f"{part[:50]!r} names no GPU", next_step=_EXAMPLES
        )
    nodes, count, node = (
        int(matched[group]) if matched[group] else None for group in ("nodes", "count", "node")
    )
    kind = find_gpu(matched["gpu"].strip())
    if nodes is not None:
        cluster = Cluster(kind, 1 if count is None else count, nodes, LinkRates.for_gpu(kind))
    else:
        cluster = Cluster.from_gpus(kind, 1 if count is None else count, node)
    if not separator:
        return cluster
    links = msgspec.structs.replace(
        cluster.links, inter_node=_parse_bandwidth(bandwidth.strip()) / cluster.per_node
    )
    return Cluster(kind, cluster.per_node, cluster.nodes, links)


def _parse_bandwidth(text: str) -> float:
    """Parse bytes per second of a node: "400 Gbit/s", "400 Gb/s", "50 GB/s"."""
    matched = _BANDWIDTH_PATTERN.fullmatch(text)
    if matched is None or not float(matched[1]):
        raise InvalidValue(
            f"the network bandwidth {text[:50]!r}",
            why="not a bandwidth",
            next_step="use e.g. @ 400 Gbit/s or @ 50 GB/s",
        )
    return float(matched[1]) * 1e9 / (1 if matched[2].startswith("GB") else 8)

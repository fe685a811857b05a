"""Clusters: which GPUs, how many in a node, how many nodes, and what joins them."""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import BadValue
from holdfast.measured.fit import Fit
from holdfast.plan.gpus import Gpu, gpu

#: GPUs in a node where nothing else is said.
USUAL_NODE = 8
_MOST_GPUS = 1 << 20
#: "2 x 8 A100-80G", "16xH100-80G/8", "4 V100", "H100".
_TIMES = r"\s*[x\u00d7*]\s*"
_PART = re.compile(
    rf"(?:(?P<nodes>\d{{1,12}}){_TIMES}(?=\d{{1,12}}[\sx\u00d7*]))?(?:(?P<count>\d{{1,12}})(?:{_TIMES}|\s+))?"
    r"(?P<gpu>[a-z][^/]*|\d{4}[^/]*?)(?:/\s*(?P<node>\d{1,12}))?",
    re.IGNORECASE,
)
#: What a node can send and receive: bits a second, or bytes with a capital B.
_SPEED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*(Gb(?:it)?(?:/s|ps)|GB(?:/s|ps))")
_EXAMPLES = "for example: 2 x 8 A100-80G, 16xH100-80G/8, or 2 A100-80G + 2 V100-32G"


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU can send, each direction: ``inside`` its node and ``outside``, in bytes a second.

    ``inside_s`` and ``outside_s``: latency of one hop in seconds, between those that NCCL reckons with for its
    protocols LL128 and Simple (src/graph/tuning.cc: 1.9 and 3.4 us over NVLink, 4 and 14 over the network). ``bus``:
    what all-reduce reaches in a node where switches sum (0: they do not). ``measured``: fits of ``holdfast bench``,
    which count more than any table.
    """

    inside: float
    outside: float
    inside_s: float = 2.6e-6
    outside_s: float = 9e-6
    bus: float = 0.0
    measured: tuple[Fit, ...] = ()

    @classmethod
    def of(cls, kind: Gpu) -> Links:
        """Those of the usual node of such GPUs."""
        return cls(inside=kind.inside, outside=kind.network, bus=kind.bus)


class Cluster(msgspec.Struct, frozen=True):
    """``nodes`` alike, each with ``per_node`` GPUs of one kind."""

    gpu: Gpu
    per_node: int
    nodes: int
    links: Links

    def __post_init__(self) -> None:
        if not (self.per_node >= 1 and self.nodes >= 1 and self.per_node * self.nodes <= _MOST_GPUS):
            raise BadValue("the cluster", why=f"{self.nodes} nodes of {self.per_node} GPUs cannot be")
        if min(self.links.inside, self.links.outside) <= 0:
            raise BadValue("the links of the cluster", why="a bandwidth has to be above 0")

    @property
    def gpus(self) -> int:
        """In all."""
        return self.per_node * self.nodes

    @classmethod
    def of(cls, kind: Gpu | str, gpus: int, per_node: int | None = None, links: Links | None = None) -> Cluster:
        """``gpus`` of a kind in full nodes, or in one that is not full.

        Where nothing is said they are as large as the kind's links reach: 8, or all that evenly fill racks of 72.

        Raises:
            UnknownName: no such GPU.
            BadValue: a number that cannot be.
        """
        found = gpu(kind) if isinstance(kind, str) else kind
        if per_node is None:
            per_node = _usual(found, gpus)
        if gpus < 1 or per_node < 1:
            raise BadValue(f"{gpus} GPUs in nodes of {per_node}", why="at least one is needed", next_step=_EXAMPLES)
        node = min(gpus, per_node)
        if gpus % node:
            whole = gpus // node * node
            raise BadValue(
                f"{gpus} GPUs in nodes of {per_node}", why="they do not fill the nodes",
                next_step=f"say how many a node has (…/{per_node}), or take {whole} or {whole + node}",
            )  # fmt: skip
        return cls(found, node, gpus // node, links or Links.of(found))

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """A cluster of one kind: "2 x 8 A100-80G", "16xH100-80G/8", "4 V100"; "@ 400 Gbit/s" is a node's network.

        Raises:
            UnknownName: no such GPU.
            BadValue: it cannot be read, or has several kinds.
        """
        found = parse_mixed(text)
        if len(found) > 1:
            raise BadValue(f"the cluster {text[:100]!r}", why="one kind of GPU is wanted here", next_step=_EXAMPLES)
        return found[0]

    def resized(self, gpus: int) -> Cluster:
        """The same with another number of GPUs: nodes as they are, or one that is not full."""
        return Cluster.of(self.gpu, gpus, self.per_node, self.links)

    def __str__(self) -> str:
        return f"{self.nodes} x {self.per_node} {self.gpu.name}"


def _usual(kind: Gpu, gpus: int) -> int:
    """GPUs of a node; of a rack, if all of them can be dealt out evenly to racks."""
    if kind.domain <= USUAL_NODE:
        return USUAL_NODE
    return next((size for size in range(min(kind.domain, gpus), USUAL_NODE, -1) if gpus % size == 0), USUAL_NODE)


def parse_mixed(text: str) -> tuple[Cluster, ...]:
    """Clusters joined by "+", "and" or a comma: "2 A100-80G + 2 V100-32G".

    Raises:
        UnknownName: no such GPU.
        BadValue: it cannot be read.
    """
    parts = [part.strip() for part in re.split(r"\+|,|;|\band\b", text[:1000])]
    return tuple(_part(part, text) for part in parts)


def _part(part: str, text: str) -> Cluster:
    part, at, speed = part.partition("@")
    found = _PART.fullmatch(part.strip())
    if found is None:
        raise BadValue(f"the cluster {text[:100]!r}", why=f"{part[:50]!r} names no GPUs", next_step=_EXAMPLES)
    nodes, count, node = (int(found[group]) if found[group] else None for group in ("nodes", "count", "node"))
    kind = gpu(found["gpu"].strip())
    if nodes is not None:
        cluster = Cluster(kind, 1 if count is None else count, nodes, Links.of(kind))
    else:
        cluster = Cluster.of(kind, 1 if count is None else count, node)
    if not at:
        return cluster
    links = msgspec.structs.replace(cluster.links, outside=_network(speed.strip()) / cluster.per_node)
    return Cluster(kind, cluster.per_node, cluster.nodes, links)


def _network(text: str) -> float:
    """Bytes a second of a node: "400 Gbit/s", "400 Gb/s", "50 GB/s"."""
    found = _SPEED.fullmatch(text)
    if found is None or not float(found[1]):
        raise BadValue(
            f"a network of {text[:50]!r}", why="it is no rate", next_step="for example: @ 400 Gbit/s, @ 50 GB/s"
        )
    return float(found[1]) * 1e9 / (1 if found[2].startswith("GB") else 8)

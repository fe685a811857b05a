"""Process groups of a setup: which ranks talk to which, as a DeviceMesh and as lists, and on which nodes they stand.

Orders: torchtitan's mesh has pipelines outermost and tensor parallelism innermost (torchtitan/distributed/
parallel_dims.py, ``build_mesh``); Megatron-LM says its order from the innermost on, "tp-cp-ep-dp-pp" (megatron/core/
parallel_state.py, ``RankGenerator``), which comes to the same. Experts have a mesh of their own over the same ranks,
without context: torchtitan's ``efsdp`` and ``ep``, Megatron's expert ``RankGenerator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.errors import BadValue
from holdfast.plan.setup import Setup, Strategy

Ranks = npt.NDArray[np.int64]
#: As Megatron-LM writes them, the innermost first.
ORDER = "tp-cp-ep-dp-pp"
_AXES = ("tp", "cp", "ep", "dp", "pp")
_NAMES: Mapping[str, str] = {
    "tp": "tensor", "cp": "context", "ep": "expert", "pp": "pipeline", "dp": "data", "dp_replicate": "replicas",
    "dp_shard": "shards of a copy", "fsdp": "shards, over context ranks too", "dp_cp": "data and context: gradients",
    "edp": "data, of experts",
}  # fmt: skip


class Mesh(msgspec.Struct, frozen=True):
    """Axes of more than one rank, the outermost first, as ``torch.distributed.init_device_mesh`` takes them."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return prod(self.shape)

    def ranks(self) -> Ranks:
        """All of them, in the mesh's shape."""
        return np.arange(self.world_size, dtype=np.int64).reshape(self.shape)

    def groups(self, *names: str) -> Ranks:
        """Those that differ along these axes alone, a row for each group, in rising order of their first ranks."""
        places = [self.names.index(name) for name in names]
        size = prod(self.shape[place] for place in places)
        return np.moveaxis(self.ranks(), places, range(-len(places), 0)).reshape(-1, size)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis.

        Raises:
            BadValue: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise BadValue(f"rank {rank}", why=f"there are ranks 0 to {self.world_size - 1}")
        found = np.unravel_index(rank, self.shape)
        return {name: int(place) for name, place in zip(self.names, found, strict=True)}


class Groups(msgspec.Struct, frozen=True):
    """All process groups of a setup.

    ``mesh`` has the axes that every parameter knows, ``experts`` those of experts (None where they are not divided).
    ``kinds``: axes of each kind of group, in the order in which all ranks have to make them.
    """

    mesh: Mesh
    experts: Mesh | None
    kinds: dict[str, tuple[str, ...]]

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.mesh.world_size

    def home(self, kind: str) -> Mesh:
        """The mesh whose axes a kind is made of."""
        return self.experts if self.experts is not None and kind in ("ep", "edp") else self.mesh

    def ranks(self, kind: str) -> Ranks:
        """Its groups, a row for each."""
        return self.home(kind).groups(*self.kinds[kind])

    def lists(self) -> dict[str, list[list[int]]]:
        """All groups, as plain lists: the same on every rank."""
        return {kind: self.ranks(kind).tolist() for kind in self.kinds}

    def of(self, rank: int) -> dict[str, list[int]]:
        """The groups of one rank.

        Raises:
            BadValue: there is no such rank.
        """
        self.mesh.coordinates(rank)
        found = {}
        for kind in self.kinds:
            ranks = self.ranks(kind)
            found[kind] = ranks[(ranks == rank).any(axis=1)][0].tolist()
        return found


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where groups of a kind stand: how many there are, ranks of each, and over how many nodes the widest reaches."""

    kind: str
    what: str
    groups: int
    size: int
    nodes: int
    example: tuple[int, ...]


def groups(setup: Setup, order: str = ORDER) -> Groups:
    """The groups of a setup; ranks are counted along ``order``, the innermost axis first.

    Raises:
        BadValue: no such order, or experts that cannot be divided along it.
    """
    axes = _axes(order)
    sizes = {"tp": setup.tensor, "cp": setup.context, "pp": setup.pipeline}
    data = _data(setup)
    mesh = _mesh(axes, sizes, data)
    kinds: dict[str, tuple[str, ...]] = {name: (name,) for name in mesh.names}
    ranks = tuple(name for name, _ in data if name in mesh.names)
    if len(ranks) > 1:
        kinds["dp"] = ranks
    if "cp" in mesh.names and ranks:
        if "dp_shard" in ranks:
            kinds["fsdp"] = _in_order(mesh, ("dp_shard", "cp"))
        if ranks != ("dp_shard",):
            kinds["dp_cp"] = _in_order(mesh, (*ranks, "cp"))
    if setup.expert == 1:
        return Groups(mesh, None, kinds)
    experts = _experts(setup, axes)
    kinds["ep"] = ("ep",)
    if "edp" in experts.names:
        kinds["edp"] = ("edp",)
    return Groups(mesh, experts, kinds)


def places(found: Groups, per_node: int) -> list[Place]:
    """Of each kind, where its groups stand if ranks fill node after node."""
    if per_node < 1:
        raise BadValue(f"{per_node} ranks in a node", why="at least one is needed")
    rows = []
    for kind in found.kinds:
        ranks = found.ranks(kind)
        reach = (np.diff(np.sort(ranks // per_node, axis=1), axis=1) > 0).sum(axis=1).max() + 1
        rows.append(Place(
            kind=kind, what=_NAMES[kind], groups=len(ranks), size=ranks.shape[1], nodes=int(reach),
            example=tuple(ranks[0].tolist()),
        ))  # fmt: skip
    return rows


# ---- axes


def _axes(order: str) -> tuple[str, ...]:
    """The order's axes, the outermost first; expert may be left out."""
    axes = tuple(order.casefold().split("-"))
    if sorted({*axes, "ep"}) != sorted(_AXES) or len(set(axes)) != len(axes):
        raise BadValue(
            f"the order {order[:50]!r}", why="it has to name tp, cp, dp and pp once each, and may name ep",
            next_step=f"for example {ORDER}, or tp-cp-ep-pp-dp",
        )  # fmt: skip
    return axes[::-1]


def _data(setup: Setup) -> list[tuple[str, int]]:
    """The data axis, in two where there are replicas of shards."""
    if setup.strategy not in (Strategy.FSDP1, Strategy.FSDP2):
        return [("dp", setup.data)]
    return [("dp_replicate", setup.replicas), ("dp_shard", setup.data // setup.replicas)]


def _mesh(axes: Sequence[str], sizes: Mapping[str, int], data: Sequence[tuple[str, int]]) -> Mesh:
    """Axes of one rank are left out, but for the last one where nothing else is."""
    every: list[tuple[str, int]] = []
    for axis in axes:
        every += data if axis == "dp" else [(axis, sizes[axis])] if axis in sizes else []
    kept = [each for each in every if each[1] > 1] or [data[-1]]
    return Mesh(tuple(name for name, _ in kept), tuple(size for _, size in kept))


def _experts(setup: Setup, axes: Sequence[str]) -> Mesh:
    """Experts are divided among data and context ranks: first over those that stand nearest."""
    ranks = setup.data * setup.context
    if (setup.shards) % setup.expert:
        raise BadValue(
            f"{setup.expert} ranks of experts",
            why=f"they do not divide the {setup.shards} ranks that share one copy of the model",
        )
    # Megatron-LM asks the same (parallel_state.py): else a pipeline of experts would have other ranks
    if axes[0] != "pp" and setup.pipeline > 1 and setup.context != setup.expert:
        raise BadValue("an order that does not end with pp", why="experts would stand in other pipelines than the rest")
    order = axes if "ep" in axes else (*axes[:-1], "ep", axes[-1])
    sizes = {"tp": setup.tensor, "pp": setup.pipeline, "ep": setup.expert}
    return _mesh([each for each in order if each != "cp"], sizes, [("edp", ranks // setup.expert)])


def _in_order(mesh: Mesh, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in mesh.names if name in names)


def sizes(found: Groups) -> dict[str, int]:
    """Ranks of a group, by kind."""
    return {kind: found.ranks(kind).shape[1] for kind in found.kinds}

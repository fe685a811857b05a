"""Process groups of a setup: which ranks communicate, and on which nodes.

Orders: torchtitan's mesh has pipelines outermost and tensor parallelism innermost
(torchtitan/distributed/parallel_dims.py, ``build_mesh``). Megatron-LM writes its order from the
innermost axis, "tp-cp-ep-dp-pp" (megatron/core/parallel_state.py, ``RankGenerator``), which is
equivalent. Experts have a separate mesh over the same ranks, without context parallelism:
torchtitan's ``efsdp`` and ``ep``, Megatron's expert ``RankGenerator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.core.errors import InvalidValue
from holdfast.plan.setup import ShardingStrategy, TrainingSetup

RankArray = npt.NDArray[np.int64]
#: Megatron-LM's order, innermost first.
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_AXES = ("tp", "cp", "ep", "dp", "pp")
_DESCRIPTIONS: Mapping[str, str] = {
    "tp": "tensor",
    "cp": "context",
    "ep": "expert",
    "pp": "pipeline",
    "dp": "data",
    "dp_replicate": "replicas",
    "dp_shard": "shards of one replica",
    "fsdp": "shards, including context ranks",
    "dp_cp": "data and context: gradients",
    "edp": "data parallelism of experts",
}


class RankMesh(msgspec.Struct, frozen=True):
    """Axes with more than one rank, outermost first, as ``init_device_mesh`` takes them."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return prod(self.shape)

    def rank_array(self) -> RankArray:
        """Return all ranks in the mesh's shape."""
        return np.arange(self.world_size, dtype=np.int64).reshape(self.shape)

    def group_ranks(self, *names: str) -> RankArray:
        """Return the groups along these axes, one row per group, ordered by their first ranks."""
        positions = [self.names.index(name) for name in names]
        size = prod(self.shape[position] for position in positions)
        return np.moveaxis(self.rank_array(), positions, range(-len(positions), 0)).reshape(
            -1, size
        )

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the rank's position along each axis.

        Raises:
            InvalidValue: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise InvalidValue(f"rank {rank}", why=f"valid ranks are 0 to {self.world_size - 1}")
        position = np.unravel_index(rank, self.shape)
        return {name: int(index) for name, index in zip(self.names, position, strict=True)}


class ProcessGroups(msgspec.Struct, frozen=True):
    """All process groups of a setup.

    ``mesh`` has the axes of all parameters, ``expert_mesh`` those of experts (None without expert
    parallelism). ``kinds``: axes of each kind of group, in the order in which all ranks must create
    them.
    """

    mesh: RankMesh
    expert_mesh: RankMesh | None
    kinds: dict[str, tuple[str, ...]]

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.mesh.world_size

    def mesh_of(self, kind: str) -> RankMesh:
        """Return the mesh that contains the axes of a kind."""
        return (
            self.expert_mesh
            if self.expert_mesh is not None and kind in ("ep", "edp")
            else self.mesh
        )

    def ranks(self, kind: str) -> RankArray:
        """Return the groups of a kind, one row per group."""
        return self.mesh_of(kind).group_ranks(*self.kinds[kind])

    def as_lists(self) -> dict[str, list[list[int]]]:
        """Return all groups as plain lists, equal on every rank."""
        return {kind: self.ranks(kind).tolist() for kind in self.kinds}

    def groups_of_rank(self, rank: int) -> dict[str, list[int]]:
        """Return the groups of one rank.

        Raises:
            InvalidValue: no such rank.
        """
        self.mesh.coordinates(rank)
        groups = {}
        for kind in self.kinds:
            ranks = self.ranks(kind)
            groups[kind] = ranks[(ranks == rank).any(axis=1)][0].tolist()
        return groups


class GroupPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Number and size of the groups of one kind, and how many nodes the widest group spans."""

    kind: str
    description: str
    groups: int
    size: int
    nodes: int
    example: tuple[int, ...]


def build_process_groups(setup: TrainingSetup, order: str = DEFAULT_ORDER) -> ProcessGroups:
    """Return the groups of a setup; ``order`` numbers the ranks, innermost axis first.

    Raises:
        InvalidValue: an invalid order, or experts that cannot be divided along it.
    """
    axes = _parse_order(order)
    sizes = {"tp": setup.tensor, "cp": setup.context, "pp": setup.pipeline}
    data = _data_axes(setup)
    mesh = _build_mesh(axes, sizes, data)
    kinds: dict[str, tuple[str, ...]] = {name: (name,) for name in mesh.names}
    ranks = tuple(name for name, _ in data if name in mesh.names)
    if len(ranks) > 1:
        kinds["dp"] = ranks
    if "cp" in mesh.names and ranks:
        if "dp_shard" in ranks:
            kinds["fsdp"] = _sort_axes(mesh, ("dp_shard", "cp"))
        if ranks != ("dp_shard",):
            kinds["dp_cp"] = _sort_axes(mesh, (*ranks, "cp"))
    if setup.expert == 1:
        return ProcessGroups(mesh, None, kinds)
    experts = _build_expert_mesh(setup, axes)
    kinds["ep"] = ("ep",)
    if "edp" in experts.names:
        kinds["edp"] = ("edp",)
    return ProcessGroups(mesh, experts, kinds)


def place_process_groups(groups: ProcessGroups, per_node: int) -> list[GroupPlacement]:
    """Return the placement of each kind if ranks fill node after node."""
    if per_node < 1:
        raise InvalidValue(f"{per_node} ranks in a node", why="must be at least 1")
    placements = []
    for kind in groups.kinds:
        ranks = groups.ranks(kind)
        node_count = (np.diff(np.sort(ranks // per_node, axis=1), axis=1) > 0).sum(axis=1).max() + 1
        placements.append(
            GroupPlacement(
                kind=kind,
                description=_DESCRIPTIONS[kind],
                groups=len(ranks),
                size=ranks.shape[1],
                nodes=int(node_count),
                example=tuple(ranks[0].tolist()),
            )
        )
    return placements


# ---- axes


def _parse_order(order: str) -> tuple[str, ...]:
    """Return the order's axes, outermost first; ``ep`` is optional."""
    axes = tuple(order.casefold().split("-"))
    if sorted({*axes, "ep"}) != sorted(_AXES) or len(set(axes)) != len(axes):
        raise InvalidValue(
            f"the order {order[:50]!r}",
            why="must name tp, cp, dp and pp once each; ep is optional",
            next_step=f"use e.g. {DEFAULT_ORDER} or tp-cp-ep-pp-dp",
        )
    return axes[::-1]


def _data_axes(setup: TrainingSetup) -> list[tuple[str, int]]:
    """Return the data axis, split in two for replicas of shards."""
    if setup.strategy not in (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2):
        return [("dp", setup.data)]
    return [("dp_replicate", setup.replicas), ("dp_shard", setup.data // setup.replicas)]


def _build_mesh(
    axes: Sequence[str], sizes: Mapping[str, int], data: Sequence[tuple[str, int]]
) -> RankMesh:
    """Build a mesh without axes of one rank; the last axis stays if all have one rank."""
    all_axes: list[tuple[str, int]] = []
    for axis in axes:
        all_axes += data if axis == "dp" else [(axis, sizes[axis])] if axis in sizes else []
    used_axes = [axis for axis in all_axes if axis[1] > 1] or [data[-1]]
    return RankMesh(tuple(name for name, _ in used_axes), tuple(size for _, size in used_axes))


def _build_expert_mesh(setup: TrainingSetup, axes: Sequence[str]) -> RankMesh:
    """Divide experts among data and context ranks, nearest ranks first."""
    ranks = setup.data * setup.context
    if (setup.shards) % setup.expert:
        raise InvalidValue(
            f"{setup.expert} expert-parallel ranks",
            why=f"they do not divide the {setup.shards} ranks that share one copy of the model",
        )
    # Megatron-LM requires the same (parallel_state.py): otherwise experts get other pipeline ranks
    if axes[0] != "pp" and setup.pipeline > 1 and setup.context != setup.expert:
        raise InvalidValue(
            "an order that does not end with pp",
            why="experts would be on other pipelines than the other layers",
        )
    order = axes if "ep" in axes else (*axes[:-1], "ep", axes[-1])
    sizes = {"tp": setup.tensor, "pp": setup.pipeline, "ep": setup.expert}
    return _build_mesh(
        [axis for axis in order if axis != "cp"], sizes, [("edp", ranks // setup.expert)]
    )


def _sort_axes(mesh: RankMesh, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in mesh.names if name in names)

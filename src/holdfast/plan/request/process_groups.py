"""Process groups of a planned run: placement, verification and drawings."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.errors import InternalError
from holdfast.core.rank_sets import compress_ranks
from holdfast.plan.layout.process_group_checks import verify_groups
from holdfast.plan.layout.process_groups import (
    ProcessGroups,
    build_process_groups,
    place_process_groups,
)
from holdfast.plan.render.summary import GroupDrawing
from holdfast.plan.request.plan_request import PlannedRun

#: Ranks that a page draws, and the longest example list.
_MAX_DRAWN = 128
_CAPTIONS = {
    "tp": "GPUs of one colour share each layer's matrices and communicate in every layer",
    "cp": "GPUs of one colour share a sequence",
    "ep": "GPUs of one colour share a layer's experts",
    "dp": "GPUs of one colour reduce gradients together",
    "dp_shard": "GPUs of one colour share one copy of the model",
    "dp_replicate": "GPUs of one colour hold the same shard and reduce its gradients",
    "pp": "GPUs of one colour hold the same layers",
}  # fmt: skip
_TITLES = {
    "tp": "Tensor groups",
    "cp": "Context groups",
    "ep": "Expert groups",
    "dp": "Data-parallel groups",
    "dp_shard": "Shards",
    "dp_replicate": "Replicas",
    "pp": "Pipeline stages",
}


def checked_process_groups(run: PlannedRun) -> ProcessGroups:
    """Return the groups of a run.

    Raises:
        InternalError: the groups are wrong, which is a bug.
    """
    groups = build_process_groups(run.setup)
    if problems := verify_groups(groups, run.setup.world_size):
        raise InternalError(f"groups of {run.setup}: {problems[0]}")
    return groups


def describe_process_groups(groups: ProcessGroups, per_node: int) -> Iterator[str]:
    """Yield a sentence for each kind of group, and one on the verification."""
    for placement in place_process_groups(groups, per_node):
        reach = "within a node" if placement.nodes == 1 else f"across {placement.nodes} nodes"
        first = (
            compress_ranks(placement.example)
            if len(placement.example) < _MAX_DRAWN
            else f"{placement.example[0]}, …"
        )
        count = f"{placement.groups} groups" if placement.groups > 1 else "one group"
        yield (
            f"{placement.kind} ({placement.description}): {count} of {placement.size} ranks "
            f"{reach}; first: {first}"
        )
    yield (
        f"verified: each of {groups.world_size:,} ranks is in exactly one group of each kind, "
        "groups of different "
        "kinds share at most one rank, and all ranks create all groups in the same order"
    )


def draw_process_groups(groups: ProcessGroups) -> tuple[GroupDrawing, ...]:
    """Return the group numbers of the first ranks, one drawing for each kind."""
    return tuple(
        GroupDrawing(_TITLES[kind], _CAPTIONS[kind], _group_numbers(groups, kind))
        for kind in reversed(list(groups.kinds))
        if kind in _TITLES and not (kind == "dp" and "dp_shard" in groups.kinds)
    )


def _group_numbers(groups: ProcessGroups, kind: str) -> tuple[int, ...]:
    """Return the group number of each rank; for pipelines, the stage number."""
    numbers = [0] * groups.world_size
    for number, ranks in enumerate(groups.ranks(kind).tolist()):
        for index, rank in enumerate(ranks):
            numbers[rank] = index if kind == "pp" else number
    return tuple(numbers[:_MAX_DRAWN])

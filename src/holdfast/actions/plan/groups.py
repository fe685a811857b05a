"""Process groups of a planned run: where they stand, whether they are right, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.actions.plan.wish import Run
from holdfast.errors import InternalError
from holdfast.plan.groups import Groups, groups, places
from holdfast.plan.groups_verify import verify
from holdfast.report.plan import Drawn
from holdfast.report.ranksets import compress_ranks

#: Ranks that a page draws; no more than so many are shown of an example.
_MOST_DRAWN = 128
_SAID = {
    "tp": "GPUs of one colour share each layer's matrices, and meet in every layer",
    "cp": "GPUs of one colour share a sequence",
    "ep": "GPUs of one colour share a layer's experts",
    "dp": "GPUs of one colour sum up gradients",
    "dp_shard": "GPUs of one colour share one copy of the model",
    "dp_replicate": "GPUs of one colour hold the same shard, and sum up its gradients",
    "pp": "GPUs of one colour hold the same layers",
}  # fmt: skip
_TITLES = {
    "tp": "Tensor groups", "cp": "Context groups", "ep": "Expert groups", "dp": "Data-parallel groups",
    "dp_shard": "Shards", "dp_replicate": "Replicas", "pp": "Pipeline stages",
}  # fmt: skip


def made(run: Run) -> Groups:
    """The groups of a run.

    Raises:
        InternalError: they are not right, which nobody should get.
    """
    found = groups(run.setup)
    if flaws := verify(found, run.setup.world_size):
        raise InternalError(f"groups of {run.setup}: {flaws[0]}")
    return found


def lines(found: Groups, per_node: int) -> Iterator[str]:
    """A sentence for each kind, and that they were verified."""
    for place in places(found, per_node):
        where = "within a node" if place.nodes == 1 else f"over {place.nodes} nodes"
        first = compress_ranks(place.example) if len(place.example) < _MOST_DRAWN else f"{place.example[0]} and on"
        count = f"{place.groups} groups" if place.groups > 1 else "one group"
        yield f"{place.kind} ({place.what}): {count} of {place.size} ranks {where}, the first is {first}"
    yield (f"verified: each of {found.world_size:,} ranks is in exactly one group of each kind, groups of different "
           "kinds share one rank at most, and all ranks make all groups in the same order")  # fmt: skip


def drawn(found: Groups) -> tuple[Drawn, ...]:
    """Group numbers of the first ranks, a picture for each kind."""
    return tuple(
        Drawn(_TITLES[kind], _SAID[kind], _numbers(found, kind)) for kind in reversed(list(found.kinds))
        if kind in _TITLES and not (kind == "dp" and "dp_shard" in found.kinds)
    )  # fmt: skip


def _numbers(found: Groups, kind: str) -> tuple[int, ...]:
    """Of each rank its group's number; of a pipeline the stage's, as stages are what people look for."""
    numbers = [0] * found.world_size
    for number, ranks in enumerate(found.ranks(kind).tolist()):
        for place, rank in enumerate(ranks):
            numbers[rank] = place if kind == "pp" else number
    return tuple(numbers[:_MOST_DRAWN])

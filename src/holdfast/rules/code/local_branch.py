"""A collective under a condition that each rank answers for itself."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, why


def _wants(parting: Parting) -> bool:
    return parting.kind == "branch" and parting.op is not None and parting.op.kind != "creation" and not parting.by_rank


def _says(parting: Parting) -> str:
    return (
        f"{operation(parting)} is entered only where `{parting.text}` holds, and each rank answers that "
        f"for itself: {why(parting.sources)}"
    )


RULE = Rule(
    name="local-data-branch",
    cause=by_name("rank-skips-collective"),
    tier=Tier.DATA,
    what_it_does="Finds collectives under a condition on a rank's own data, files, time or counters.",
    known_misses="File systems that all ranks share answer alike; the finding is false there as long as nobody writes "
    "meanwhile.",
    bad="""\
import pathlib


def resume(path):
    if pathlib.Path(path).exists():
        box = [torch.load(path) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)  # found
        return box[0]
    return None
""",
    good="""\
import pathlib


def resume(path):
    box = [torch.load(path) if dist.get_rank() == 0 and pathlib.Path(path).exists() else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]
""",
    wants=_wants,
    says=_says,
)

"""The outer half of a reduction in two steps, by the leaders alone, on the group of all ranks."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "leaders"


def _says(parting: Parting) -> str:
    return (
        f"the leaders of the nodes (`{parting.text}`) are alone in {operation(parting)}, which is on the group of all "
        "ranks: make a group of the leaders"
    )


RULE = Rule(
    name="leaders-on-default-group",
    cause=by_name("rank-guarded-collective"),
    tier=Tier.SURE,
    what_it_does="Finds reductions in two steps whose first one is on a group of each node, and whose second one is by "
    "the first rank of each node, on the default group.",
    known_misses="Leaders that are told by something else than the number within the node.",
    bad="""\
import os

NODE = dist.new_group(list(range(int(os.environ["LOCAL_WORLD_SIZE"]))))


def total(values):
    dist.reduce(values, dst=0, group=NODE)
    if int(os.environ["LOCAL_RANK"]) == 0:
        dist.all_reduce(values)  # found
""",
    good="""\
import os

SIZE = int(os.environ["LOCAL_WORLD_SIZE"])
NODE = dist.new_group(list(range(SIZE)))
LEADERS = dist.new_group(list(range(0, dist.get_world_size(), SIZE)))


def total(values):
    dist.reduce(values, dst=0, group=NODE)
    if int(os.environ["LOCAL_RANK"]) == 0:
        dist.all_reduce(values, group=LEADERS)
""",
    wants=_wants,
    says=_says,
)

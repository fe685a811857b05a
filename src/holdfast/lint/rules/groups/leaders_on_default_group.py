"""The second step of a hierarchical reduction, by node leaders only, on the default group."""

from __future__ import annotations

from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"only the node leaders (`{divergence.text}`) enter {describe_operation(divergence)}, "
        "which is on the group of all ranks: create a group of the leaders"
    )


RULE = Rule(
    name="leaders-on-default-group",
    cause=RANK_GUARDED_COLLECTIVE,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds two-step reductions whose first step is on a group per node, and whose second step "
        "is on the default group but only on the first rank of each node."
    ),
    known_misses="Leaders that are not selected by the local rank.",
    bad="""\
import os

NODE = dist.new_group(list(range(int(os.environ["LOCAL_WORLD_SIZE"]))))


def total(values):
    dist.reduce(values, group=NODE, group_dst=0)
    if int(os.environ["LOCAL_RANK"]) == 0:
        dist.all_reduce(values)  # found
""",
    good="""\
import os

SIZE = int(os.environ["LOCAL_WORLD_SIZE"])
NODE = dist.new_group(list(range(SIZE)))
LEADERS = dist.new_group(list(range(0, dist.get_world_size(), SIZE)))


def total(values):
    dist.reduce(values, group=NODE, group_dst=0)
    if int(os.environ["LOCAL_RANK"]) == 0:
        dist.all_reduce(values, group=LEADERS)
""",
    kinds=("leaders",),
    message=_message,
)

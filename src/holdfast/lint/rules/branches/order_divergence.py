"""Collectives in a different order on each rank."""

from __future__ import annotations

from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` iterates over a set, whose order differs between processes, and "
        f"enters {describe_operation(divergence)} for each element"
    )


RULE = Rule(
    name="order-divergence",
    cause=COLLECTIVE_ORDER_INVERSION,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds loops over sets that contain collectives: string hashes differ between processes "
        "(PYTHONHASHSEED). Also shares of a list whose order each rank has drawn with its own "
        "seed, samplers over unsorted listings and sets, numbers that names get in such an "
        "order, and `hash(text) % count`."
    ),
    known_misses=(
        "Sets of numbers have the same order in all processes; a set with unknown elements is "
        "assumed to hold strings."
    ),
    bad="""\
def reduce(metrics):
    for name in set(metrics):  # found
        dist.all_reduce(metrics[name])
""",
    good="""\
def reduce(metrics):
    for name in sorted(set(metrics)):
        dist.all_reduce(metrics[name])
""",
    kinds=("order", "habit-order"),
    message=_message,
)

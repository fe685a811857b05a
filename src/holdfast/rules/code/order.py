"""The same collectives in another order."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "order"


def _says(parting: Parting) -> str:
    return (
        f"`{parting.text}` goes over a set, whose order differs from process to process, and enters "
        f"{operation(parting)} for each"
    )


RULE = Rule(
    name="order-divergence",
    cause=by_name("collective-order-inversion"),
    tier=Tier.SURE,
    what_it_does="Finds loops over sets with collectives in them: strings hash differently in each process "
    "(PYTHONHASHSEED).",
    known_misses="Sets of numbers have one order in all processes; of a set of which is not known what it holds, "
    "strings are believed.",
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
    wants=_wants,
    says=_says,
)

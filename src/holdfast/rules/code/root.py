"""A root that differs."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, why


def _wants(parting: Parting) -> bool:
    return parting.kind == "root"


def _says(parting: Parting) -> str:
    return f"{parting.text} has to be the same on all ranks, and is not: {why(parting.sources)}"


RULE = Rule(
    name="mismatched-root",
    cause=by_name("collective-mismatch"),
    tier=Tier.SURE,
    what_it_does="Finds broadcasts, reductions and scatters whose src or dst differs over ranks.",
    known_misses="Roots of sub-groups, which differ from group to group rightly.",
    bad="""\
def share(tensor):
    dist.broadcast(tensor, src=dist.get_rank())  # found
""",
    good="""\
def share(tensor):
    dist.broadcast(tensor, src=0)
""",
    wants=_wants,
    says=_says,
)

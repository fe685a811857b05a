"""A collective of a group under a test that not all of its members pass."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "members"


def _says(parting: Parting) -> str:
    return f"`{parting.text}` lets only some of the group's ranks ({parting.how}) to {operation(parting)}"


RULE = Rule(
    name="group-members-left-out",
    cause=by_name("rank-guarded-collective"),
    tier=Tier.SURE,
    what_it_does="Finds collectives of a group that was made of ranks given in numbers, under a comparison of the rank "
    "with numbers that keeps some of these ranks away. Ranks that are no members are let through by torch with a "
    "warning, and nothing is said of them.",
    known_misses="Groups and tests that are worked out.",
    bad="""\
PAIR = dist.new_group([0, 1])


def share(values):
    if dist.get_rank() < 1:
        dist.all_reduce(values, group=PAIR)  # found
""",
    good="""\
PAIR = dist.new_group([0, 1])


def share(values):
    if dist.get_rank() < 2:
        dist.all_reduce(values, group=PAIR)
""",
    wants=_wants,
    says=_says,
)

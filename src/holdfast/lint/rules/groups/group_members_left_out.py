"""A collective of a group under a test that excludes some of its members."""

from __future__ import annotations

from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.text}` excludes some of the group's ranks ({divergence.detail}) from "
        f"{describe_operation(divergence)}"
    )


RULE = Rule(
    name="group-members-left-out",
    cause=RANK_GUARDED_COLLECTIVE,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds collectives of a group with literal ranks, under a comparison of the rank with "
        "numbers that excludes some of these ranks. Ranks outside of the group are not reported: "
        "torch skips them with a warning."
    ),
    known_misses="Groups and tests that are computed.",
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
    kinds=("members",),
    message=_message,
)

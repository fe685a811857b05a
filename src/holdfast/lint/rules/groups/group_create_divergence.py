"""Groups created by some ranks only."""

from __future__ import annotations

from holdfast.causes.sync.new_group_by_some_ranks import NEW_GROUP_BY_SOME_RANKS
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _matches(divergence: Divergence) -> bool:
    return divergence.kind in ("ranks", "habit-group") or divergence.op_kind == "creation"


def _message(divergence: Divergence) -> str:
    if divergence.kind == "ranks":
        members = (
            f"`{divergence.text}`"
            if divergence.op is None
            else f"other members under `{divergence.text}`"
        )
        return (
            f"ranks create different groups here ({members}): every rank must create every group, "
            "in the same order"
        )
    return (
        f"{describe_operation(divergence)} is called only under `{divergence.text}`: every rank "
        "must create every group, member or not"
    )


RULE = Rule(
    name="group-create-divergence",
    cause=NEW_GROUP_BY_SOME_RANKS,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds new_group and similar calls that not all ranks make, not equally often, or with "
        "different members. Advice: groups that every step of a training loop creates again."
    ),
    known_misses=(
        "Groups created by libraries. Two calls of one helper on either side of a test are not "
        "distinguished by their members."
    ),
    bad="""\
def pairs():
    for members in ([0, 1], [2, 3]):
        if dist.get_rank() in members:
            return dist.new_group(members)  # found
    return None
""",
    good="""\
def pairs():
    own_group = None
    for members in ([0, 1], [2, 3]):
        group = dist.new_group(members)
        if dist.get_rank() in members:
            own_group = group
    return own_group
""",
    kinds=("ranks", "branch", "exit", "habit-group"),
    matches=_matches,
    message=_message,
)

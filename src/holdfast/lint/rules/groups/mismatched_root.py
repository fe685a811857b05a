"""A root that differs between ranks, or a position in a group in place of a rank of the job."""

from __future__ import annotations

from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause


def _message(divergence: Divergence) -> str:
    if divergence.kind == "group-rank":
        return divergence.detail
    return (
        f"{divergence.text} must be equal on all ranks and is not: "
        f"{describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="mismatched-root",
    cause=COLLECTIVE_MISMATCH,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds broadcasts, reductions and scatters whose src or dst differs between ranks. Also "
        "src, dst and peer that are positions in a group, as `dist.get_rank(group)` and "
        "`mesh.get_local_rank()` return them: torch expects ranks of the job; and the reverse "
        "for group_src and group_dst. And one fixed rank as root of several groups."
    ),
    known_misses=(
        "Roots of sub-groups, which correctly differ from group to group; positions that the "
        "program computes from its rank itself."
    ),
    bad="""\
def share(tensor):
    dist.broadcast(tensor, src=dist.get_rank())  # found
""",
    good="""\
def share(tensor):
    dist.broadcast(tensor, src=0)
""",
    kinds=("root", "habit-root", "group-rank"),
    message=_message,
)

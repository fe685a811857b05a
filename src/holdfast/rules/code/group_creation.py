"""Groups that are created by some ranks only."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    if parting.kind == "ranks":
        return True
    return parting.kind in ("branch", "exit") and parting.op is not None and parting.op.kind == "creation"


def _says(parting: Parting) -> str:
    if parting.kind == "ranks":
        whom = f"of `{parting.text}`" if parting.op is None else f"of others where `{parting.text}` holds"
        return f"not all ranks create the same group here, but one {whom}: each has to create all of them, in one order"
    return (
        f"{operation(parting)} is called only where `{parting.text}` holds: every rank has to create "
        "every group, members or not"
    )


RULE = Rule(
    name="group-create-divergence",
    cause=by_name("new-group-by-some-ranks"),
    tier=Tier.SURE,
    what_it_does="Finds new_group and its kin where not all ranks call them, not equally often, or each "
    "for other members.",
    known_misses="Groups that libraries create. Of two calls of one helper, on either side of a test, the members are "
    "not told apart.",
    bad="""\
def pairs():
    for members in ([0, 1], [2, 3]):
        if dist.get_rank() in members:
            return dist.new_group(members)  # found
    return None
""",
    good="""\
def pairs():
    mine = None
    for members in ([0, 1], [2, 3]):
        group = dist.new_group(members)
        if dist.get_rank() in members:
            mine = group
    return mine
""",
    wants=_wants,
    says=_says,
)

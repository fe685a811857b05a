"""Shapes that differ where they must be the same."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, why


def _wants(parting: Parting) -> bool:
    return parting.kind == "shape"


def _says(parting: Parting) -> str:
    return f"the tensor that {parting.text} is given need not have the same shape on all ranks: {why(parting.sources)}"


RULE = Rule(
    name="mismatched-args",
    cause=by_name("mismatched-shape"),
    tier=Tier.DATA,
    what_it_does="Finds collectives whose tensor has a shape that differs over ranks.",
    known_misses="Shapes that come out of libraries.",
    bad="""\
def collect(predictions):
    mine = torch.zeros(dist.get_rank() + 1)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)  # found
    return parts
""",
    good="""\
def collect(predictions):
    mine = torch.zeros(8)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return parts
""",
    wants=_wants,
    says=_says,
)

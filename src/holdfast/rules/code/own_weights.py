"""Replicas that begin with different weights."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "own-weights"


def _says(parting: Parting) -> str:
    return (
        f"each rank draws other weights for `{parting.text}`, after the seed of its rank at {short(parting.guard)}; "
        "gradients are averaged, weights never"
    )


RULE = Rule(
    name="weights-of-rank-seed",
    cause=by_name("replicas-diverge"),
    tier=Tier.DRIFT,
    what_it_does="Finds models that are made after a seed of the rank, in a module that reduces gradients by hand and "
    "neither wraps, broadcasts nor loads weights.",
    known_misses="Models that another function makes, or that are not torch's own modules or derived from them.",
    bad="""\
def main():
    torch.manual_seed(7 + dist.get_rank())
    model = torch.nn.Linear(4, 4)  # found
    model(torch.ones(4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
""",
    good="""\
def main():
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 4)
    torch.manual_seed(7 + dist.get_rank())
    model(torch.rand(4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
""",
    wants=_wants,
    says=_says,
)

"""State that has to be the same on all ranks, changed by one."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind in ("state", "scaler")


def _says(parting: Parting) -> str:
    return f"`{parting.text}`: what should be the same on all ranks is changed by what one rank has for itself"


RULE = Rule(
    name="rank-local-state",
    cause=by_name("replicas-diverge"),
    tier=Tier.DRIFT,
    what_it_does="Finds weights that are changed by agreed gradients times a factor of this rank alone, a GradScaler "
    "that looks for Inf before gradients are averaged, and ReduceLROnPlateau that is shown a rank's own loss.",
    known_misses="Other learning rates that are handed to an optimizer.",
    bad="""\
def train(batches):
    weights = torch.zeros(2)
    seen = dist.get_rank()
    for gradient in batches:
        dist.all_reduce(gradient)
        weights -= 0.1 * seen * gradient  # found
""",
    good="""\
def train(batches):
    weights = torch.zeros(2)
    for gradient in batches:
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
""",
    wants=_wants,
    says=_says,
)

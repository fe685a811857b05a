"""Gradients that no rank ever averages with the others."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "no-sync"


def _says(parting: Parting) -> str:
    return (
        f"every backward before the step at {short(parting.guard)} stands under no_sync: gradients are never averaged, "
        "and each rank trains a model of its own"
    )


RULE = Rule(
    name="no-sync-throughout",
    cause=by_name("replicas-diverge"),
    tier=Tier.DRIFT,
    what_it_does="Finds functions with a step of an optimizer in which every backward stands in `with "
    "model.no_sync():`, that of the last part of a batch too, and which average nothing themselves.",
    known_misses="A step more than one call away from the backward; a last part that is told by a condition of the "
    "wrong number; no_sync that a rank enters by a condition of its own, which is a collective under that condition.",
    bad="""\
def train(model, batches, optimizer, parts):
    for batch in batches:
        with model.no_sync():  # found
            for part in batch.chunk(parts):
                model(part).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    good="""\
def train(model, batches, optimizer, parts):
    for batch in batches:
        *others, last = batch.chunk(parts)
        with model.no_sync():
            for part in others:
                model(part).mean().backward()
        model(last).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    wants=_wants,
    says=_says,
)

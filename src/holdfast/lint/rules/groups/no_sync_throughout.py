"""Gradients that are never averaged."""

from __future__ import annotations

from holdfast.causes.numerics.replicas_diverge import REPLICAS_DIVERGE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    if divergence.kind == "no-sync-step":
        return (
            f"the backward just before the step at {short_location(divergence.guard)} is under "
            "no_sync: the step uses gradients that are not averaged, and ranks drift apart"
        )
    return (
        f"every backward before the step at {short_location(divergence.guard)} is under no_sync: "
        "gradients are never averaged, and each rank trains a different model"
    )


RULE = Rule(
    name="no-sync-throughout",
    cause=REPLICAS_DIVERGE,
    tier=RuleTier.DRIFT,
    what_it_does=(
        "Finds functions with an optimizer step in which every backward is inside `with "
        "model.no_sync():`, even that of the last micro-batch, and which average no gradients "
        "themselves; and loops whose tests of no_sync and of the step both hold in one round."
    ),
    known_misses=(
        "A step more than one call away from the backward; tests of anything but the round; "
        "no_sync entered under a rank-local condition, which is a collective under a condition."
    ),
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
    kinds=("no-sync", "no-sync-step"),
    message=_message,
)

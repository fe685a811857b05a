"""A rank-local change to state that must be equal on all ranks."""

from __future__ import annotations

from holdfast.causes.numerics.replicas_diverge import REPLICAS_DIVERGE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    if divergence.kind == "bare":
        return (
            "the wrapped model is called without its wrapper, so that the gradients of backward "
            f"at {short_location(divergence.guard)} are not averaged over ranks"
        )
    return (
        f"`{divergence.text}`: state that must be equal on all ranks is changed by a rank-local "
        "value"
    )


RULE = Rule(
    name="rank-local-state",
    cause=REPLICAS_DIVERGE,
    tier=RuleTier.DRIFT,
    what_it_does=(
        "Finds weights updated with agreed gradients times a rank-local factor, a GradScaler that "
        "checks for Inf before gradients are averaged, and ReduceLROnPlateau with a rank-local "
        "loss. Advice: clipping and steps of optimizers and schedulers on some ranks, torch's "
        "clipping of an FSDP1 model, optimizers created before FSDP wraps their model, forward "
        "passes around the DDP wrapper, parameters added, frozen or unfrozen after wrapping, "
        "models and optimizers that Accelerate does not prepare, schedules that it advances too "
        "often, state set in Lightning's prepare_data, states of optimizers that one rank loads, "
        "and shares of the data that one rank alone saves."
    ),
    known_misses="Other rank-local learning rates passed to an optimizer.",
    bad="""\
def train(batches):
    weights = torch.zeros(2)
    factor = dist.get_rank()
    for gradient in batches:
        dist.all_reduce(gradient)
        weights -= 0.1 * factor * gradient  # found
""",
    good="""\
def train(batches):
    weights = torch.zeros(2)
    for gradient in batches:
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
""",
    kinds=("state", "scaler", "bare", "habit-state"),
    message=_message,
)

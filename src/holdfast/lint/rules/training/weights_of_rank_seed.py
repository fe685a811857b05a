"""Replicas that start with different weights."""

from __future__ import annotations

from holdfast.causes.numerics.replicas_diverge import REPLICAS_DIVERGE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    return (
        f"each rank draws different weights for `{divergence.text}`, after a rank-dependent "
        f"seed at {short_location(divergence.guard)}; gradients are averaged, weights never"
    )


RULE = Rule(
    name="weights-of-rank-seed",
    cause=REPLICAS_DIVERGE,
    tier=RuleTier.DRIFT,
    what_it_does=(
        "Finds models created after a rank-dependent seed, in a module that reduces gradients by "
        "hand and neither wraps, broadcasts nor loads weights."
    ),
    known_misses="Models created by another function, or not derived from torch's own modules.",
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
    kinds=("own-weights",),
    message=_message,
)

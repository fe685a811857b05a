"""A collective under a condition on the rank."""

from __future__ import annotations

from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause, describe_operation


def _matches(divergence: Divergence) -> bool:
    return divergence.op_kind == "collective" and divergence.is_rank_only


def _message(divergence: Divergence) -> str:
    return (
        f"{describe_operation(divergence)} is entered only under `{divergence.text}`, and ranks "
        f"that enter it wait for the others: {describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="rank-guarded-collective",
    cause=RANK_GUARDED_COLLECTIVE,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds collectives that only some ranks reach because of a condition on the rank, through "
        "any number of calls, decorators and properties. A parameter called `rank` counts as the "
        "rank while no caller is seen; the finding is then a note."
    ),
    known_misses=(
        "Groups passed in from elsewhere are assumed to contain exactly the ranks that pass the "
        "test. A rank read from a configuration file is not recognized."
    ),
    bad="""\
def validate(loss):
    dist.all_reduce(loss)
    return loss


def train(loss):
    if dist.get_rank() == 0:
        print(validate(loss))  # found
""",
    good="""\
def validate(loss):
    dist.all_reduce(loss)
    return loss


def train(loss):
    loss = validate(loss)
    if dist.get_rank() == 0:
        print(loss)
""",
    kinds=("branch",),
    matches=_matches,
    message=_message,
)

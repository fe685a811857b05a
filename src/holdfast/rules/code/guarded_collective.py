"""A collective under a condition on the rank: the ranks that pass it wait for those that do not."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, why


def _wants(parting: Parting) -> bool:
    return parting.kind == "branch" and parting.op is not None and parting.op.kind == "collective" and parting.by_rank


def _says(parting: Parting) -> str:
    return (
        f"{operation(parting)} is entered only where `{parting.text}` holds, and the other ranks wait for "
        f"it: {why(parting.sources)}"
    )


RULE = Rule(
    name="rank-guarded-collective",
    cause=by_name("rank-guarded-collective"),
    tier=Tier.SURE,
    what_it_does="Finds collectives that only some ranks reach because of a condition on the rank, through any number "
    "of calls, decorators and properties.",
    known_misses="Groups that were handed in from elsewhere are believed to hold just the ranks that pass the test. A "
    "rank that comes from a configuration file is not known to be one.",
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
    wants=_wants,
    says=_says,
)

"""A collective under a test or in a loop that may differ between ranks."""

from __future__ import annotations

from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    if divergence.guard == divergence.location:
        return (
            f"`{divergence.text}` enters {describe_operation(divergence)}: cannot prove that all "
            "ranks have the same number of iterations"
        )
    if divergence.detail:
        return (
            f"`{divergence.detail}` under `{divergence.text}` skips "
            f"{describe_operation(divergence)}: cannot prove that the test is equal on all ranks"
        )
    return (
        f"{describe_operation(divergence)} is under `{divergence.text}`: cannot prove that "
        "the test is equal on all ranks"
    )


RULE = Rule(
    name="undecided",
    cause=RANK_MISSING_COLLECTIVE,
    tier=RuleTier.UNSURE,
    what_it_does=(
        "Only with `--strict`: finds collectives under tests and in loops that the analysis cannot "
        "prove to be equal on all ranks, because they depend on arguments, files or libraries."
    ),
    known_misses=(
        "Nearly all of these are correct programs. Collectives behind calls that the analysis does "
        "not follow (deeper than 40, or by computed name) are not seen."
    ),
    bad="""\
def log(value, config):
    if config.verbose:
        dist.all_reduce(value)  # found
""",
    good="""\
def log(value):
    if dist.get_world_size() > 1:
        dist.all_reduce(value)
""",
    kinds=("undecided",),
    message=_message,
)

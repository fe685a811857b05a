"""A collective in an exception handler."""

from __future__ import annotations

from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    if divergence.text == "finally":
        return (
            f"{describe_operation(divergence)} is in `finally`: a rank that raised enters it while "
            "the others are still in the block"
        )
    return (
        f"{describe_operation(divergence)} is in an exception handler (`{divergence.text}`): only "
        "ranks that raised enter it"
    )


RULE = Rule(
    name="collective-in-except",
    cause=RANK_SKIPS_COLLECTIVE,
    tier=RuleTier.FAULT,
    what_it_does=(
        "Finds collectives in an `except` block: the rank that raised enters them, the others do "
        "not. The same in `finally`, if ranks wait for each other in the block: a rank that left "
        "the block early enters them while the others are still inside."
    ),
    known_misses=(
        "A barrier in `finally` is allowed, as usual part of the teardown. An exception that all "
        "ranks raise together, for example because of agreed values, is not distinguished from "
        "others."
    ),
    bad="""\
def step(run, batch):
    try:
        run(batch)
    except RuntimeError:
        dist.barrier()  # found
""",
    good="""\
def step(run, batch):
    failed = torch.zeros(1)
    try:
        run(batch)
    except RuntimeError:
        failed += 1
    dist.all_reduce(failed)
""",
    kinds=("except", "habit-except"),
    message=_message,
)

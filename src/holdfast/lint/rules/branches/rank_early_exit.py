"""An early exit that only some ranks take, by rank."""

from __future__ import annotations

from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause, describe_operation


def _matches(divergence: Divergence) -> bool:
    return bool(divergence.sources) and divergence.is_rank_only


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.detail}` under `{divergence.text}` skips {describe_operation(divergence)}, "
        f"which the other ranks enter: {describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="rank-early-exit",
    cause=RANK_SKIPS_COLLECTIVE,
    tier=RuleTier.SURE,
    what_it_does=(
        "Finds `return`, `break`, `continue` and `sys.exit()` with status 0 under a condition on "
        "the rank, before collectives that the other ranks enter, also below further conditions."
    ),
    known_misses=(
        "An uncaught `raise` is not reported: the rank exits, and the launcher stops the others."
    ),
    bad="""\
def train(steps):
    stop = False
    for step in range(steps):
        if dist.get_rank() == 0:
            stop = step > 3
        if stop:
            return  # found
        dist.barrier()
""",
    good="""\
def train(steps):
    for step in range(steps):
        box = [step > 3 if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)
        if box[0]:
            return
        dist.barrier()
""",
    kinds=("exit",),
    matches=_matches,
    message=_message,
)

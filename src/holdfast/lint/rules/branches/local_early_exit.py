"""An early exit that depends on rank-local data or an exception."""

from __future__ import annotations

from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_cause, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"`{divergence.detail}` under `{divergence.text}` skips {describe_operation(divergence)}: "
        f"{describe_cause(divergence.sources)}"
    )


RULE = Rule(
    name="local-early-exit",
    cause=RANK_SKIPS_COLLECTIVE,
    tier=RuleTier.DATA,
    what_it_does=(
        "Finds `return`, `break` and `continue` that depend on rank-local data (a loss that is not "
        "finite, an empty batch, an exception) before collectives that the other ranks enter."
    ),
    known_misses=(
        "If the data happen to be equal on all ranks, the finding is false. Data not known to be "
        "rank-local are assumed to be equal."
    ),
    bad="""\
def step(loss, optimizer):
    if not torch.isfinite(loss):
        return  # found
    dist.all_reduce(loss)
    optimizer.step()
""",
    good="""\
def step(loss, optimizer):
    bad = (~torch.isfinite(loss)).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
        return
    dist.all_reduce(loss)
    optimizer.step()
""",
    kinds=("exit",),
    message=_message,
)

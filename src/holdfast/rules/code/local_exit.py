"""A way out that a rank takes for its own data or exception."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, why


def _wants(parting: Parting) -> bool:
    return parting.kind in ("exit", "left") and not (bool(parting.sources) and parting.by_rank)


def _says(parting: Parting) -> str:
    return f"`{parting.how}` at `{parting.text}` leaves out {operation(parting)}: {why(parting.sources)}"


RULE = Rule(
    name="local-early-exit",
    cause=by_name("rank-skips-collective"),
    tier=Tier.DATA,
    what_it_does="Finds return, break and continue that depend on what a rank has for itself (a loss that is not "
    "finite, an empty batch, an exception) before collectives that the others make.",
    known_misses="What is equal by chance: where all ranks have the same data, the finding is false. Data of which is "
    "not seen that it is a rank's own are believed to be equal.",
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
    wants=_wants,
    says=_says,
)

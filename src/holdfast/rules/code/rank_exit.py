"""A way out that only some ranks take, by their rank."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, why


def _wants(parting: Parting) -> bool:
    return parting.kind in ("exit", "left") and bool(parting.sources) and parting.by_rank


def _says(parting: Parting) -> str:
    return (
        f"`{parting.how}` where `{parting.text}` holds leaves out {operation(parting)}, which the other "
        f"ranks enter: {why(parting.sources)}"
    )


RULE = Rule(
    name="rank-early-exit",
    cause=by_name("rank-skips-collective"),
    tier=Tier.SURE,
    what_it_does="Finds return, break and continue under a condition on the rank before collectives that the other "
    "ranks make.",
    known_misses="A raise that nobody catches ends the rank, and the launcher ends the others: it is not reported.",
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
    wants=_wants,
    says=_says,
)

"""A collective in a handler."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "except"


def _says(parting: Parting) -> str:
    return (
        f"{operation(parting)} is entered in a handler (`{parting.text}`): only ranks where something was "
        "raised come here"
    )


RULE = Rule(
    name="collective-in-except",
    cause=by_name("rank-skips-collective"),
    tier=Tier.FAULT,
    what_it_does="Finds collectives in an except block: the rank where something was raised enters them, the others do "
    "not.",
    known_misses="An exception that all ranks raise together, such as one that follows from agreed values, is not told "
    "from others.",
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
    wants=_wants,
    says=_says,
)

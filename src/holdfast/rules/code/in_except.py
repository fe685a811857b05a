"""A collective in a handler."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "except"


def _says(parting: Parting) -> str:
    if parting.text == "finally":
        return (
            f"{operation(parting)} is entered in `finally`: where something is raised on one rank, that one comes here "
            "while the others are still in what it left"
        )
    return (
        f"{operation(parting)} is entered in a handler (`{parting.text}`): only ranks where something was "
        "raised come here"
    )


RULE = Rule(
    name="collective-in-except",
    cause=by_name("rank-skips-collective"),
    tier=Tier.FAULT,
    what_it_does="Finds collectives in an except block: the rank where something was raised enters them, the others do "
    "not. So it is in `finally`, after a block in which ranks wait for each other: the rank that left it early enters "
    "them while the others are still in there.",
    known_misses="A barrier in `finally` is let pass, as the last thing before the end. An exception that all ranks "
    "raise together, such as one that follows from agreed values, is not told from others.",
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

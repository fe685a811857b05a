"""A collective under a test, or in a loop, of which it is not known whether all ranks take it alike."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "undecided"


def _says(parting: Parting) -> str:
    if parting.guard == parting.place:
        return f"`{parting.text}` enters {operation(parting)}: it is not known that all ranks have as many rounds"
    if parting.how:
        return (
            f"`{parting.how}` under `{parting.text}` leaves out {operation(parting)}: it is not known that all ranks "
            "answer that alike"
        )
    return f"{operation(parting)} is under `{parting.text}`: it is not known that all ranks answer that alike"


RULE = Rule(
    name="undecided",
    cause=by_name("rank-missing-collective"),
    tier=Tier.UNSURE,
    what_it_does="With `--strict` alone: finds collectives under tests and in loops of which the analysis does not "
    "know whether they are the same on all ranks, since they come out of arguments, files or libraries.",
    known_misses="Nearly all of them are right. Where the analysis follows no call (40 deep, or through computed names)"
    " it does not see the collective either.",
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
    wants=_wants,
    says=_says,
)

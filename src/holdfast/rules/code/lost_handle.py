"""A handle that nobody waits for."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "handle"


def _says(parting: Parting) -> str:
    what = f"`{parting.how}`" if len(parting.how) <= 60 else "its buffer"
    return f"nobody waits for the {parting.text} that is started here, and {what} is used while it may still run"


RULE = Rule(
    name="missing-wait",
    cause=by_name("result-used-too-early"),
    tier=Tier.DRIFT,
    what_it_does="Finds collectives with `async_op=True`, isend and irecv whose handle is dropped, or kept where "
    "nobody reads it, while the buffer is used afterwards; who calls a function that returns a handle, always "
    "or where it is told to, is looked at.",
    known_misses="Handles in a list that nobody goes through, or that are waited for on one way and not on another. "
    "A function that waits for the device or in a barrier afterwards is left out.",
    bad="""\
def start(gradients):
    return dist.all_reduce(gradients, async_op=True)


def average(gradients):
    start(gradients)  # found
    return gradients / dist.get_world_size()
""",
    good="""\
def start(gradients):
    return dist.all_reduce(gradients, async_op=True)


def average(gradients):
    start(gradients).wait()
    return gradients / dist.get_world_size()
""",
    wants=_wants,
    says=_says,
)

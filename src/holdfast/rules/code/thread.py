"""Collectives of two threads on one group."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "thread"


def _says(parting: Parting) -> str:
    return (
        f"a thread enters {parting.op.name if parting.op else 'a collective'} on the group that the "
        "program uses too: which comes first differs from rank to rank"
    )


RULE = Rule(
    name="thread-collective",
    cause=by_name("collective-order-inversion"),
    tier=Tier.DATA,
    what_it_does="Finds collectives of a thread on the group that the main thread uses too.",
    known_misses="Threads that are started by libraries.",
    bad="""\
import threading


def count(seen):
    dist.all_reduce(seen)  # found


def train(gradient, seen):
    threading.Thread(target=count, args=(seen,)).start()
    dist.all_reduce(gradient)


train(torch.ones(1), torch.ones(1))
""",
    good="""\
import threading

SIDE = dist.new_group()


def count(seen):
    dist.all_reduce(seen, group=SIDE)


def train(gradient, seen):
    threading.Thread(target=count, args=(seen,)).start()
    dist.all_reduce(gradient)


train(torch.ones(1), torch.ones(1))
""",
    wants=_wants,
    says=_says,
)

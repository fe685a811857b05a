"""Collectives of two threads on one group."""

from __future__ import annotations

from holdfast.causes.sync.collective_order_inversion import COLLECTIVE_ORDER_INVERSION
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    return (
        f"a thread enters {divergence.op.name if divergence.op else 'a collective'} on the group "
        "that the main program uses too: their order differs between ranks"
    )


RULE = Rule(
    name="thread-collective",
    cause=COLLECTIVE_ORDER_INVERSION,
    tier=RuleTier.DATA,
    what_it_does=(
        "Finds collectives of a thread on a group that the main thread uses too. Advice: "
        "collectives in `__del__` and signal handlers, which run at another time on each rank."
    ),
    known_misses="Threads started by libraries.",
    bad="""\
import threading


def count(samples):
    dist.all_reduce(samples)  # found


def train(gradient, samples):
    threading.Thread(target=count, args=(samples,)).start()
    dist.all_reduce(gradient)


train(torch.ones(1), torch.ones(1))
""",
    good="""\
import threading

SIDE = dist.new_group()


def count(samples):
    dist.all_reduce(samples, group=SIDE)


def train(gradient, samples):
    threading.Thread(target=count, args=(samples,)).start()
    dist.all_reduce(gradient)


train(torch.ones(1), torch.ones(1))
""",
    kinds=("thread", "habit-thread"),
    message=_message,
)

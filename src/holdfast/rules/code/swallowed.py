"""An exception that is caught after it has left out a collective."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "swallowed"


def _says(parting: Parting) -> str:
    return (
        f"what is called here may raise on one rank; `{parting.text}` catches it, and "
        f"{operation(parting)} is left out there"
    )


RULE = Rule(
    name="raise-before-collective",
    cause=by_name("rank-skips-collective"),
    tier=Tier.FAULT,
    what_it_does="Finds exceptions that the program itself raises and catches again, with a collective in between that "
    "the rank then leaves out; and files, downloads and other programs of one rank that may fail in a block whose "
    "handler goes on, with a collective of all behind them in the block.",
    known_misses="Other exceptions of libraries are not followed, as any call may raise.",
    bad="""\
def check(loss):
    if torch.isnan(loss):
        raise ValueError("the loss is no number")


def step(loss):
    check(loss)  # found
    dist.all_reduce(loss)


def train(losses):
    for loss in losses:
        try:
            step(loss)
        except ValueError:
            print("left out")
""",
    good="""\
def check(loss):
    bad = torch.isnan(loss).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad.item():
        raise ValueError("the loss is no number on some rank")


def step(loss):
    check(loss)
    dist.all_reduce(loss)


def train(losses):
    for loss in losses:
        try:
            step(loss)
        except ValueError:
            print("left out")
""",
    wants=_wants,
    says=_says,
)

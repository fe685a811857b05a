"""An exception that is caught after it skipped a collective."""

from __future__ import annotations

from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"this call may raise on one rank; `{divergence.text}` catches the exception, and "
        f"that rank skips {describe_operation(divergence)}"
    )


RULE = Rule(
    name="raise-before-collective",
    cause=RANK_SKIPS_COLLECTIVE,
    tier=RuleTier.FAULT,
    what_it_does=(
        "Finds exceptions that the program raises and catches itself, with a collective in between "
        "that the rank then skips. Also finds calls that may fail on one rank alone in a block "
        "whose handler continues: file access, downloads and subprocesses under a rank test or at "
        "a rank's own path, a wrapped model's forward pass, memory if the handler is for that, the "
        "end of an iterator, and, in a loop, parsing and unknown functions of the data."
    ),
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
    kinds=("swallowed",),
    message=_message,
)

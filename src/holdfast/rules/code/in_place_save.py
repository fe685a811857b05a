"""A checkpoint that is written over the last good one."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "in-place"


def _says(parting: Parting) -> str:
    what = parting.text if len(parting.text) <= 80 else "the file"
    return f"{what} is written over the last good one: who dies or fills the disk meanwhile has none"


RULE = Rule(
    name="nonatomic-save",
    cause=by_name("checkpoint-corrupt"),
    tier=Tier.ADVICE,
    what_it_does="Finds `torch.save` under a name that is the same each time, in a loop or in a method, from which the "
    "module also loads, or which takes a state dict. Where the function moves or copies files nothing is said.",
    known_misses="Paths are followed to all callers in sight, and only where each name is assigned once. Folders of "
    "shards (torch.distributed.checkpoint, DeepSpeed), and what libraries write.",
    bad="""\
def train(model, steps):
    for step in range(steps):
        model(step).backward()
        if step % 100 == 0:
            torch.save(model.state_dict(), "last.pt")  # found
""",
    good="""\
import os


def train(model, steps):
    for step in range(steps):
        model(step).backward()
        if step % 100 == 0:
            torch.save(model.state_dict(), "last.pt.new")
            os.replace("last.pt.new", "last.pt")
""",
    wants=_wants,
    says=_says,
)

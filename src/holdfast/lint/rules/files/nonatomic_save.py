"""A checkpoint that overwrites the last good one."""

from __future__ import annotations

from holdfast.causes.checkpoint.checkpoint_corrupt import CHECKPOINT_CORRUPT
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    path = divergence.text if len(divergence.text) <= 80 else "the file"
    return (
        f"{path} overwrites the last good checkpoint: a crash or a full disk during the save "
        "leaves none"
    )


RULE = Rule(
    name="nonatomic-save",
    cause=CHECKPOINT_CORRUPT,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds `torch.save` to the same path each time, in a loop or method, if the module also "
        "loads from that path or a state dict is saved. Functions that move or copy files are not "
        "reported."
    ),
    known_misses=(
        "Paths are followed to all visible callers, and only through names assigned once. Sharded "
        "checkpoint folders (torch.distributed.checkpoint, DeepSpeed) and files written by "
        "libraries are not checked."
    ),
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
    kinds=("in-place",),
    message=_message,
)

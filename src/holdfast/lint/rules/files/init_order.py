"""An environment variable that is set after it was read."""

from __future__ import annotations

from holdfast.causes.environment.variable_set_too_late import VARIABLE_SET_TOO_LATE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    if divergence.kind == "early":
        return (
            "the rank is asked for before the process group exists, which raises: call it after "
            "init_process_group, or read RANK"
        )
    return f"{divergence.text} is set here, after it was read at {short_location(divergence.guard)}"


RULE = Rule(
    name="init-order",
    cause=VARIABLE_SET_TOO_LATE,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds variables of NCCL and of torch's process groups that are set after the group was "
        "created, which reads them once."
    ),
    known_misses=(
        "Only the order within one program from start to end; a notebook's cells may run in any "
        "order."
    ),
    bad="""\
import os

dist.init_process_group("nccl")
os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # found
""",
    good="""\
import os

os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
dist.init_process_group("nccl")
""",
    kinds=("variable", "early"),
    message=_message,
)

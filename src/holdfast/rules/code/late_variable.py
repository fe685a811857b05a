"""A variable that is set after it was read."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "variable"


def _says(parting: Parting) -> str:
    return f"{parting.text} is set here, after it was read at {short(parting.guard)}"


RULE = Rule(
    name="init-order",
    cause=by_name("variable-set-too-late"),
    tier=Tier.ADVICE,
    what_it_does="Finds variables of NCCL and of torch's process groups that are set after the group exists, which "
    "reads them once.",
    known_misses="Only what one program does from its beginning to its end; a notebook's cells may run in any order.",
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
    wants=_wants,
    says=_says,
)

"""A limit of time given by a variable that nobody reads."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier
from holdfast.rules.code.unread_variable import unread


def _wants(parting: Parting) -> bool:
    claim = unread(parting)
    return claim is not None and claim.cause == "nccl-timeout-ignored"


def _says(parting: Parting) -> str:
    return f"{parting.text} has no effect: nothing in NCCL or torch reads it; the limit is the process group's own"


RULE = Rule(
    name="ignored-time-limit",
    cause=by_name("nccl-timeout-ignored"),
    tier=Tier.ADVICE,
    what_it_does="Finds programs that set NCCL_TIMEOUT and the like, which look like the limit of a collective and are "
    "read by nobody.",
    known_misses="A framework that is not seen may read the variable.",
    bad="""\
import os

os.environ["NCCL_TIMEOUT"] = "3600"  # found
dist.init_process_group("nccl")
""",
    good="""\
import datetime

dist.init_process_group("nccl", timeout=datetime.timedelta(hours=1))
""",
    wants=_wants,
    says=_says,
)

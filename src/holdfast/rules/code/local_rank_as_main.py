"""The number within the node, taken for the number in the job."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind in ("local", "share")


def _says(parting: Parting) -> str:
    if parting.kind == "share":
        return f"`{parting.text}` of `{parting.how}` is taken: every node has the same shares, and others nobody has"
    return f"{parting.text} answers by the number within the node: there is one such rank on every node"


RULE = Rule(
    name="local-rank-as-global",
    cause=by_name("local-rank-as-global"),
    tier=Tier.ADVICE,
    what_it_does="Finds functions that by their name ask for the one main process, and answer by LOCAL_RANK; samplers "
    "and shards that are given the number within the node, and of how many: the size of the world.",
    known_misses="Told by the names of functions and parameters. Programs that start their own processes on one node.",
    bad="""\
import os


def is_main_process():
    return int(os.environ["LOCAL_RANK"]) == 0  # found
""",
    good="""\
import os


def is_main_process():
    return int(os.environ["RANK"]) == 0
""",
    wants=_wants,
    says=_says,
)

"""A local rank that is used as the global rank."""

from __future__ import annotations

from holdfast.causes.configuration.local_rank_as_global import LOCAL_RANK_AS_GLOBAL
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    if divergence.kind == "share":
        return (
            f"shard `{divergence.text}` of `{divergence.detail}` is selected by the local rank: "
            "every node reads the same shards, and the others are never read"
        )
    return f"{divergence.text} depends on the local rank: one rank on every node passes"


RULE = Rule(
    name="local-rank-as-global",
    cause=LOCAL_RANK_AS_GLOBAL,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds functions whose name refers to the single main process and whose result depends on "
        "LOCAL_RANK; samplers and shards that are given the local rank together with the world "
        "size."
    ),
    known_misses=(
        "Recognized by names of functions and parameters. Programs that start their own processes "
        "on one node are not checked."
    ),
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
    kinds=("local", "share", "habit-local-rank"),
    message=_message,
)

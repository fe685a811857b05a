"""A file that one rank writes while others read it."""

from __future__ import annotations

from holdfast.causes.data.model_download_race import MODEL_DOWNLOAD_RACE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    if divergence.kind == "merged":
        return (
            f"each rank writes its own {divergence.text} at {short_location(divergence.guard)}, "
            "and those of other ranks are read here without synchronization in between"
        )
    return (
        f"{divergence.text} by one rank at {short_location(divergence.guard)} and read here by "
        "all, without synchronization in between"
    )


RULE = Rule(
    name="fs-race",
    cause=MODEL_DOWNLOAD_RACE,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds files that one rank writes or removes and all ranks read, test or list, and parts "
        "that each rank writes and one reads, without a barrier or another collective in between. "
        "Paths are followed over calls, parameters, attributes and what functions return."
    ),
    known_misses=(
        "Paths built in ways that the analysis does not follow, and configurations that name one "
        "folder by two keys."
    ),
    bad="""\
import json
import pathlib


def statistics(path: pathlib.Path):
    if dist.get_rank() == 0:
        path.write_text(json.dumps({"mean": 0.5}))
    return json.loads(path.read_text())  # found


statistics(pathlib.Path("statistics.json"))
""",
    good="""\
import json
import pathlib


def statistics(path: pathlib.Path):
    if dist.get_rank() == 0:
        path.write_text(json.dumps({"mean": 0.5}))
    dist.barrier()
    return json.loads(path.read_text())


statistics(pathlib.Path("statistics.json"))
""",
    kinds=("file", "merged"),
    message=_message,
)

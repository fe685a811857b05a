"""A file that one rank writes while others read it."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, short


def _wants(parting: Parting) -> bool:
    return parting.kind == "file"


def _says(parting: Parting) -> str:
    return (
        f"{parting.text} by one rank at {short(parting.guard)}, and read here by all, with nothing "
        "between that makes them wait"
    )


RULE = Rule(
    name="fs-race",
    cause=by_name("model-download-race"),
    tier=Tier.ADVICE,
    what_it_does="Finds files that one rank writes and all read, without a barrier or another collective in between.",
    known_misses="Paths are compared by name: of two spellings of one path nothing is said.",
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
    wants=_wants,
    says=_says,
)

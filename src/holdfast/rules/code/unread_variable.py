"""A variable that a program sets, and that nobody reads."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.facts.variables import Given
from holdfast.findings import Finding, Level
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier
from holdfast.rules.environment import names
from holdfast.rules.environment.scene import Scene


def unread(parting: Parting) -> Finding | None:
    """What ``holdfast env`` says of the variable, where it says for sure that nobody reads it."""
    if parting.kind != "set":
        return None
    given = Given(name=parting.text, value=parting.how or None, origin=parting.place.file, line=parting.place.line)
    return next((claim for claim in names.judge(given, {}, Scene()) if claim.level is not Level.NOTE), None)


def _wants(parting: Parting) -> bool:
    claim = unread(parting)
    return claim is not None and claim.cause in ("variable-never-read", "variable-of-another-version")


def _says(parting: Parting) -> str:
    claim = unread(parting)
    return claim.message if claim is not None else parting.text


RULE = Rule(
    name="unread-variable",
    cause=by_name("variable-never-read"),
    tier=Tier.ADVICE,
    what_it_does="Finds variables of NCCL, gloo and torch that a program sets for itself or for its children and that "
    "nobody reads: misspelt ones, and those that the libraries never had or have no longer. The same table and rule as "
    "`holdfast env --scan`, which also judges scripts, images and values.",
    known_misses="Names that a plugin may read, and names that are put together.",
    bad="""\
import os

os.environ["NCCL_BUFFER_SIZE"] = "8388608"  # found
dist.init_process_group("nccl")
""",
    good="""\
import os

os.environ["NCCL_BUFFSIZE"] = "8388608"
dist.init_process_group("nccl")
""",
    wants=_wants,
    says=_says,
)

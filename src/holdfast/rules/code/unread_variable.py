"""A variable that a program sets, and that nobody reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.facts.code.partings import Parting
from holdfast.findings import Finding, Level
from holdfast.rules.causes import by_name
from holdfast.rules.code.edits import Edit
from holdfast.rules.code.rule import Rule, Tier
from holdfast.variables import meant


def unread(parting: Parting) -> Finding | None:
    """What ``holdfast env`` says of the variable, where it says for sure that nobody reads it."""
    if parting.kind != "set":
        return None
    from holdfast.facts.variables import Given  # noqa: PLC0415 - few programs set any
    from holdfast.rules.environment import names  # noqa: PLC0415
    from holdfast.rules.environment.scene import Scene  # noqa: PLC0415

    given = Given(name=parting.text, value=parting.how or None, origin=parting.place.file, line=parting.place.line)
    return next((claim for claim in names.judge(given, {}, Scene()) if claim.level is not Level.NOTE), None)


def _wants(parting: Parting) -> bool:
    claim = unread(parting)
    return claim is not None and claim.cause in ("variable-never-read", "variable-of-another-version")


def _says(parting: Parting) -> str:
    claim = unread(parting)
    return claim.message if claim is not None else parting.text


def _mend(parting: Parting, lines: Sequence[str]) -> Edit | None:
    """The name that was meant, where a finger slipped and the file says the wrong one nowhere else."""
    name, at = parting.text, parting.place.line
    right = meant(name)
    if not _slipped(name, right) or at > len(lines) or sum(line.count(name) for line in lines) != 1:
        return None
    was = lines[at - 1]
    return Edit(at, was, was.replace(name, right)) if re.search(rf"""(["']){name}\1""", was) else None


def _slipped(name: str, right: str) -> bool:
    """Two letters changed places, or one was struck twice, or once too few; else it may be a name we do not know."""
    if len(name) == len(right):
        apart = [at for at, (one, other) in enumerate(zip(name, right, strict=True)) if one != other]
        swapped = "".join(name[at] for at in reversed(apart)) == "".join(right[at] for at in apart)
        return len(apart) == 2 and apart[1] == apart[0] + 1 and swapped and "_" not in name[apart[0] : apart[1] + 1]
    shorter, longer = sorted((name, right), key=len)
    return bool(right) and any(
        longer[at - 1] == letter != "_" and longer[:at] + longer[at + 1 :] == shorter
        for at, letter in enumerate(longer)
        if at
    )


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
    mends=_mend,
)

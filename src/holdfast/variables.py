"""The variables that torch, NCCL and what stands around them read, or are only said to read: a table of typed rows.

``variables.json`` holds a row a line. It was put together from the sources: all release tags of NCCL from 1.2.1 to
2.30.7, the wheels of torch 2.1 to 2.13, and libfabric, UCX, UCC, aws-ofi-nccl and DeepSpeed of 2026; ``evidence`` names
the file. Variables of holdfast's own stand in :mod:`holdfast.settings`. The table is read when it is asked for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path

import msgspec

#: Prefixes under which every name is known, so that another name is misspelt, or somebody else's.
FAMILIES = ("TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_", "NCCL_", "GLOO_", "PET_")
_SLIP = re.compile(r"^(TORCH_)?(?:NCLL|NNCL|NCCCL|NCC|NCL)_|^(TORCH_)?NCCL(?=[A-Z])")
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


class Form(StrEnum):
    """How whoever reads the text takes it.

    ``PREFIX_NUMBER``: strtoll without a look at the rest, so that ``true`` is 0, ``8M`` 8, and 010 eight. ``NUMBER``:
    other text ends the program. ``WORDS``: 1, 0, yes, no, true, false …; other text raises. ``ZERO_ONE``: other text is
    ignored. ``CHOICE``: one of ``choices`` in any case; ``EXACT``: as they are written. ``LIST``: several of them.
    """

    PREFIX_NUMBER = "prefix-number"
    NUMBER = "number"
    WORDS = "words"
    ZERO_ONE = "zero-one"
    CHOICE = "choice"
    EXACT = "exact"
    LIST = "list"
    TEXT = "text"


class Status(StrEnum):
    """What becomes of the variable in the newest releases."""

    ACTIVE = "active"
    DEPRECATED = "deprecated"
    ALIAS = "deprecated_alias"
    UNUSED = "declared_unused"
    REMOVED = "removed"
    NEVER_READ = "never_read"
    FRAMEWORK = "framework_only"
    TOOL = "build_or_tool"


class Moment(StrEnum):
    """When the variable is read; set later, it does nothing."""

    LAUNCH = "launch"
    IMPORT = "import"
    CUDA = "cuda"
    GROUP = "group"
    COMMUNICATOR = "communicator"
    UNTOLD = ""


#: The same in words, to be put after "it is read".
MOMENTS: Mapping[Moment, str] = {
    Moment.LAUNCH: "when the launcher starts",
    Moment.IMPORT: "when torch is imported",
    Moment.CUDA: "at the first use of CUDA",
    Moment.GROUP: "by init_process_group",
    Moment.COMMUNICATOR: "when NCCL makes its first communicator (in init_process_group with a device_id, else at the "
    "first collective)",
}


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One row. ``since`` and ``removed_in`` are releases of ``owner``; ``2.8-2.9`` lies between the two."""

    name: str
    owner: str
    status: Status
    kind: str
    form: Form
    effect: str
    evidence: str
    default: str | None = None
    unit: str = ""
    since: str = ""
    removed_in: str = ""
    replaced_by: str = ""
    read_at: Moment = Moment.UNTOLD
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    multiple_of: int | None = None
    power_of_two: bool = False
    syntax: str = ""
    separator: str = ","
    keys: tuple[str, ...] = ()
    note: str = ""

    @property
    def library(self) -> str:
        """Whose releases ``since`` and ``removed_in`` are: ``nccl``, ``torch``, or another owner."""
        return "torch" if self.owner in ("torchelastic", "gloo") else self.owner

    @property
    def first(self) -> tuple[int, ...]:
        """The release before which it is surely not read; () where it was always there or that is not known."""
        return () if self.since.startswith("<") else release(self.since)

    @property
    def gone(self) -> tuple[int, ...]:
        """The release from which on it is surely not read; () where there is none."""
        found = _NUMBERS.findall(self.removed_in)
        return release(found[-1]) if found else ()


@cache
def table() -> Mapping[str, Variable]:
    """Every variable by name."""
    content = Path(__file__).with_name("variables.json").read_bytes()
    return {row.name: row for row in msgspec.json.decode(content, type=tuple[Variable, ...])}


def release(text: str) -> tuple[int, ...]:
    """The first version in a text, as numbers that can be compared; () where there is none."""
    found = _NUMBERS.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def family(name: str) -> str:
    """The prefix under which all names are known, or nothing."""
    return next((prefix for prefix in FAMILIES if name.startswith(prefix)), "")


def meant(name: str) -> str:
    """The name in the table that a misspelt one stands for; nothing where none is near, or where the name is right."""
    rows = table()
    if name in rows:
        return ""
    if slip := _SLIP.match(name):
        corrected = f"{slip[1] or slip[2] or ''}NCCL_{name[slip.end() :]}"
        return corrected if corrected in rows else near(corrected, rows)
    return near(name, [known for known in rows if known.startswith(family(name))]) if family(name) else ""


def concerns(name: str) -> bool:
    """True for a name in the table, one of the families, and one that is nearly of a family."""
    return name in table() or bool(family(name)) or bool(_SLIP.match(name))


def near(name: str, known: Iterable[str]) -> str:
    """The name that looks most like this one, and is read by somebody; nothing where none is near."""
    rows = table()
    read = [other for other in known if rows[other].status not in (Status.NEVER_READ, Status.REMOVED)]
    return next(iter(difflib.get_close_matches(name, read, n=1, cutoff=0.87)), "")

"""Environment variables of torch, NCCL and related libraries, real or mythical: a typed table.

``variables.json`` has one row per line. Sources: all release tags of NCCL from 1.2.1 to 2.30.7, the
wheels of torch 2.1 to 2.13, and libfabric, UCX, UCC, aws-ofi-nccl and DeepSpeed of 2026;
``evidence`` names the file. holdfast's own variables are in :mod:`holdfast.core.settings`. The
table is read on first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path

import msgspec

#: Prefixes of which every name is known: another name is misspelled or belongs to other software.
VARIABLE_FAMILIES = ("TORCH_NCCL_", "TORCH_FR_", "TORCHELASTIC_", "NCCL_", "GLOO_", "PET_")
_TYPO = re.compile(r"^(TORCH_)?(?:NCLL|NNCL|NCCCL|NCC|NCL)_|^(TORCH_)?NCCL(?=[A-Z])")
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


class ValueForm(StrEnum):
    """How the reader parses the text.

    ``PREFIX_NUMBER``: strtoll without checking the rest, so ``true`` is 0, ``8M`` is 8, and 010 is
    eight. ``NUMBER``: other text ends the program. ``WORDS``: 1, 0, yes, no, true, false …; other
    text raises. ``ZERO_ONE``: other text is ignored. ``CHOICE``: one of ``choices``,
    case-insensitive; ``EXACT``: case-sensitive. ``LIST``: several of them.
    """

    PREFIX_NUMBER = "prefix-number"
    NUMBER = "number"
    WORDS = "words"
    ZERO_ONE = "zero-one"
    CHOICE = "choice"
    EXACT = "exact"
    LIST = "list"
    TEXT = "text"


class VariableStatus(StrEnum):
    """Status of the variable in the newest releases."""

    ACTIVE = "active"
    DEPRECATED = "deprecated"
    ALIAS = "deprecated_alias"
    UNUSED = "declared_unused"
    REMOVED = "removed"
    NEVER_READ = "never_read"
    FRAMEWORK = "framework_only"
    TOOL = "build_or_tool"


class ReadMoment(StrEnum):
    """When the variable is read; setting it later has no effect."""

    LAUNCH = "launch"
    IMPORT = "import"
    CUDA = "cuda"
    GROUP = "group"
    COMMUNICATOR = "communicator"
    UNKNOWN = ""


#: Descriptions that follow "it is read".
READ_MOMENTS: Mapping[ReadMoment, str] = {
    ReadMoment.LAUNCH: "when the launcher starts",
    ReadMoment.IMPORT: "when torch is imported",
    ReadMoment.CUDA: "at the first use of CUDA",
    ReadMoment.GROUP: "by init_process_group",
    ReadMoment.COMMUNICATOR: "when NCCL creates its first communicator (in init_process_group with "
    "a device_id, else at the first collective)",
}


class VariableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One variable.

    ``since`` and ``removed_in`` are releases of ``owner`` (``2.8-2.9``: in between).
    """

    name: str
    owner: str
    status: VariableStatus
    kind: str
    form: ValueForm
    effect: str
    evidence: str
    default: str | None = None
    unit: str = ""
    since: str = ""
    removed_in: str = ""
    replaced_by: str = ""
    read_at: ReadMoment = ReadMoment.UNKNOWN
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
        """Return the library that ``since`` and ``removed_in`` refer to.

        ``nccl``, ``torch``, or another.
        """
        return "torch" if self.owner in ("torchelastic", "gloo") else self.owner

    @property
    def first(self) -> tuple[int, ...]:
        """Return the first release that may read it; () if it always existed or that is unknown."""
        return () if self.since.startswith("<") else parse_release(self.since)

    @property
    def gone(self) -> tuple[int, ...]:
        """Return the first release that certainly does not read it; () if there is none."""
        releases = _NUMBERS.findall(self.removed_in)
        return parse_release(releases[-1]) if releases else ()


@cache
def variable_entries() -> Mapping[str, VariableEntry]:
    """Return every variable by name."""
    content = Path(__file__).with_name("variables.json").read_bytes()
    return {row.name: row for row in msgspec.json.decode(content, type=tuple[VariableEntry, ...])}


def parse_release(text: str) -> tuple[int, ...]:
    """Return the first version number in a text, comparable; () if there is none."""
    match = _NUMBERS.search(text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def family_of(name: str) -> str:
    """Return the prefix of a fully known family, or an empty string."""
    return next((prefix for prefix in VARIABLE_FAMILIES if name.startswith(prefix)), "")


def closest_name(name: str) -> str:
    """Return the known name that a misspelled one resembles.

    Empty if none is close or it is correct.
    """
    rows = variable_entries()
    if name in rows:
        return ""
    if typo := _TYPO.match(name):
        corrected = f"{typo[1] or typo[2] or ''}NCCL_{name[typo.end() :]}"
        return corrected if corrected in rows else nearest_name(corrected, rows)
    return (
        nearest_name(name, [known for known in rows if known.startswith(family_of(name))])
        if family_of(name)
        else ""
    )


def is_relevant(name: str) -> bool:
    """Return whether the name is in the table, in a family, or nearly in a family."""
    return name in variable_entries() or bool(family_of(name)) or bool(_TYPO.match(name))


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return the most similar name that is read by some release; empty if none is close."""
    import difflib  # noqa: PLC0415 - not in every worker

    rows = variable_entries()
    active = [
        other
        for other in known
        if rows[other].status not in (VariableStatus.NEVER_READ, VariableStatus.REMOVED)
    ]
    return next(iter(difflib.get_close_matches(name, active, n=1, cutoff=0.87)), "")

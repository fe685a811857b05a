"""Items of the checklists, read from TOML: ours (``*.toml`` in this folder) and the user's."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.errors import InvalidValue, MissingFile, UnknownName
from holdfast.core.text import os_error_reason

#: Checklist -> when it is used.
CHECKLISTS: Mapping[str, str] = {
    "start": "before a job starts",
    "running": "while a job runs",
    "recovery": "after a failure, before the restart",
    "performance": "when a job is slower than expected",
    "tools": "once per image or cluster",
}
#: Placeholder in a command -> option of ``holdfast checklist`` that sets it.
PLACEHOLDERS: Mapping[str, str] = {
    "script": "--script",
    "checkpoints": "--checkpoints",
    "newest_checkpoint": "--checkpoints",
    "run": "--run",
    "logs": "--logs",
    "data": "--data",
    "baseline": "--baseline",
    "nnodes": "--nnodes",
    "endpoint": "--rdzv-endpoint",
    "nproc_per_node": "--nproc-per-node",
}
_MAX_BYTES = 1 << 20


class ChecklistItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item; exactly one of ``checks``, ``command`` and ``fact`` says how it is checked.

    ``checks``: names of host checks. ``command``: a command line with placeholders, without a
    shell. ``fact``: a function of :mod:`facts`, with its ``subject``. ``needs``: placeholders
    without which host checks say nothing about the item. ``action``: what to do if the item fails,
    or cannot be checked.
    """

    id: str
    title: str
    action: str
    checks: tuple[str, ...] = ()
    command: str = ""
    fact: str = ""
    subject: str = ""
    needs: tuple[str, ...] = ()
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise ValueError unless there is exactly one way to check the item."""
        if sum(map(bool, (self.checks, self.command, self.fact))) != 1:
            message = f"item {self.id!r} needs exactly one of checks, command and fact"
            raise ValueError(message)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Return the values that it needs: those in braces in its command and subject, too."""
        texts = (self.command, self.subject)
        named = (name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name)
        return (*self.needs, *named)

    @property
    def shown_command(self) -> str:
        """Return the command as text; empty if there is none."""
        if self.checks:
            names = " ".join(f"--only {name}" for name in self.checks)
            folder = " --checkpoints {checkpoints}" if "checkpoints" in self.needs else ""
            return f"holdfast check {names}{folder}"
        return self.command


class _ItemFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item: tuple[ChecklistItem, ...]


def read_checklist(name: str) -> tuple[ChecklistItem, ...]:
    """Return the items of one of our checklists. Raises UnknownName."""
    if name not in CHECKLISTS:
        raise UnknownName("checklist", name, CHECKLISTS)
    return read_items(Path(__file__).with_name(f"{name}.toml"))


def read_items(path: Path) -> tuple[ChecklistItem, ...]:
    """Return the items of a TOML file.

    Raises:
        MissingFile: it cannot be read.
        InvalidValue: it is not a valid list of items.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except OSError as error:
        raise MissingFile(path, why=os_error_reason(error)) from error
    try:
        items = msgspec.toml.decode(content, type=_ItemFile).item
        unknown = {name for item in items for name in item.placeholders} - PLACEHOLDERS.keys()
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidValue(
            f"the items in {path}", why=str(error), next_step="see docs/checklists.md"
        ) from error
    for name in sorted(unknown):
        raise UnknownName(f"placeholder in {path}:", f"{{{name}}}", PLACEHOLDERS)
    return items

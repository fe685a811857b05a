"""The steps of the decision tree, read from ``tree.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

FIRST = "start"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer to a question, and the step that follows."""

    text: str
    next: str


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question with answers, a command with what follows it, or advice at which the tree ends.

    After a command, ``found`` follows exit status 1, ``nothing`` status 0, and ``unknown`` every
    other one.
    """

    id: str
    text: str
    answers: tuple[Answer, ...] = ()
    command: str = ""
    found: str = ""
    nothing: str = ""
    unknown: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """Return the names in braces in the command."""
        return tuple(_PLACEHOLDER.findall(self.command))

    @property
    def following(self) -> tuple[str, ...]:
        """Return the steps that may follow."""
        steps = (*(each.next for each in self.answers), self.found, self.nothing, self.unknown)
        return tuple(dict.fromkeys(each for each in steps if each))

    def after_status(self, status: int) -> str:
        """Return the step that follows the command's exit status."""
        return {0: self.nothing, 1: self.found}.get(status, self.unknown)


class GuidedTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All steps, and the question for each value that commands need."""

    values: dict[str, str]
    step: tuple[Step, ...]

    @property
    def steps(self) -> Mapping[str, Step]:
        """Return the steps by id, in the order of the file."""
        return {each.id: each for each in self.step}


@cache
def read_tree() -> GuidedTree:
    """Return the tree."""
    content = Path(__file__).with_name("tree.toml").read_bytes()
    return msgspec.toml.decode(content, type=GuidedTree)

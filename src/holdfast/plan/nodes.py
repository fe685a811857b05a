"""Fields of a YAML file by its nodes: what each should be, and everything that is wrong, with its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import yaml

from holdfast.errors import BadValue, UnknownName
from holdfast.report.text import one_line

#: A file of settings is some hundred bytes; the parser takes minutes for millions.
MOST_CHARACTERS = 1 << 18
_SHOWN = 40


class Problem(NamedTuple):
    """What is wrong on a line, counted from 1."""

    line: int
    text: str


class Reader:
    """One document, and the ``problems`` that were found in it so far.

    Raises:
        BadValue: it is no YAML, or too long, or several documents.
    """

    def __init__(self, text: str, origin: str) -> None:
        self.problems: list[Problem] = []
        if len(text) > MOST_CHARACTERS:
            raise BadValue(origin, why=f"it has more than {MOST_CHARACTERS:,} characters")
        try:
            self.root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            why = (
                getattr(error, "problem", None) or "it is nested too deeply, or has characters that YAML does not allow"
            )
            raise BadValue(origin, why=f"{where}it is no YAML that can be read: {why}") from None

    def line(self, node: object) -> int:
        """Where a node begins; 1 where there is none."""
        return node.start_mark.line + 1 if isinstance(node, yaml.Node) else 1

    def note(self, node: object, text: str) -> None:
        """Something is wrong with it."""
        self.problems.append(Problem(self.line(node), text))

    def fields(self, node: object, known: Sequence[str], needed: Iterable[str], what: str) -> dict[str, yaml.Node]:
        """The values of a mapping by key; unknown, repeated and missing keys are noted."""
        if not isinstance(node, yaml.MappingNode):
            self.note(node, f"{what} has to be a mapping with {', '.join(known)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = _shown(key)
            if name not in known:
                self.note(key, str(UnknownName(f"key of {what}", name, known)))
            elif name in found:
                self.note(key, f"{name} is there twice, first on line {self.line(found[name])}")
            else:
                found[name] = value
        for name in needed:
            if name not in found:
                self.note(node, f"{what} has no {name}")
        return found

    def items(self, node: yaml.Node | None, name: str) -> list[yaml.Node]:
        """What a list holds; an empty one is noted."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.note(node, f"{name} has to be a list that is not empty")
            return []
        return list(node.value)

    def text(self, node: yaml.Node | None, name: str) -> str:
        """A text that is not empty; what YAML would read as a number is one too."""
        if node is None or (isinstance(node, yaml.ScalarNode) and node.value.strip()):
            return one_line(node.value) if node is not None else ""
        self.note(node, f"{name} has to be a text")
        return ""

    def word(self, node: yaml.Node | None, name: str, known: Iterable[str]) -> str:
        """One of the known words; empty where it is left out, or wrong."""
        if node is None:
            return ""
        given = _shown(node)
        if given in known:
            return given
        self.note(node, str(UnknownName(name, given, known)))
        return ""

    def number(self, node: yaml.Node | None, name: str, least: int = 1) -> int | None:
        """A whole number of at least so many; None where it is left out, or wrong."""
        if node is None:
            return None
        found = _whole(node)
        if found is None or found < least:
            self.note(node, f"{name} has to be a whole number of at least {least}, and is {_shown(node)!r}")
            return None
        return found

    def numbers(self, node: yaml.Node | None, name: str) -> tuple[int, ...]:
        """A number, or a list of them, each at least 1; those that are right."""
        nodes = self.items(node, name) if isinstance(node, yaml.SequenceNode) else [node]
        return tuple(found for each in nodes if (found := self.number(each, name)) is not None)

    def spans(self, node: yaml.Node | None, name: str, most: int) -> tuple[int, ...]:
        """``3``, ``0-3``, ``0-1,4`` or a list of such, below ``most``; in their order, repetitions too."""
        nodes = self.items(node, name) if isinstance(node, yaml.SequenceNode) else [node] if node is not None else []
        found: list[int] = []
        for each in nodes:
            for part in _shown(each, whole=True).split(","):
                first, dash, last = part.strip().partition("-")
                low, high = _digits(first), _digits(last) if dash else _digits(first)
                if low is None or high is None or low > high or high >= most or len(found) + high - low >= most:
                    self.note(each, f"{name} have to be like 3, 0-3 or [0, 1], and are {_shown(each)!r}")
                    return ()
                found += range(low, high + 1)
        return tuple(found)


def _whole(node: yaml.Node) -> int | None:
    return _digits(node.value) if isinstance(node, yaml.ScalarNode) else None


def _digits(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _shown(node: yaml.Node, *, whole: bool = False) -> str:
    """A scalar's text, cut short for people; what else it is."""
    if not isinstance(node, yaml.ScalarNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    return node.value if whole or len(node.value) <= _SHOWN else f"{node.value[:_SHOWN]}…"

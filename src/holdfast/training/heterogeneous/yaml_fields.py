"""Validate the fields of a YAML document by node, collecting all errors with their lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import yaml

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.core.text import one_line

#: Settings files have some hundred bytes; the parser takes minutes for millions.
MAX_CHARACTERS = 1 << 18
_MAX_SHOWN = 40
_SEPARATOR = re.compile(r"[-_ ]+")


class FieldProblem(NamedTuple):
    """An error on a line, counted from 1."""

    line: int
    text: str


class FieldReader:
    """One document and the ``problems`` found in it.

    Raises:
        InvalidValue: invalid YAML, too long, or several documents.
    """

    def __init__(self, text: str, origin: str) -> None:
        self.problems: list[FieldProblem] = []
        if len(text) > MAX_CHARACTERS:
            raise InvalidValue(origin, why=f"more than {MAX_CHARACTERS:,} characters")
        try:
            self.root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            location = f"line {mark.line + 1}: " if mark else ""
            why = (
                getattr(error, "problem", None)
                or "nested too deeply, or characters that YAML does not allow"
            )
            raise InvalidValue(origin, why=f"{location}invalid YAML: {why}") from None

    def line(self, node: object) -> int:
        """Return the line where a node begins; 1 if there is none."""
        return node.start_mark.line + 1 if isinstance(node, yaml.Node) else 1

    def note(self, node: object, text: str) -> None:
        """Record an error at a node."""
        self.problems.append(FieldProblem(self.line(node), text))

    def fields(
        self,
        node: object,
        known: Sequence[str],
        needed: Iterable[str],
        what: str,
        aliases: Mapping[str, str],
    ) -> dict[str, yaml.Node]:
        """Return a mapping's values by key; records unknown, repeated and missing keys.

        ``aliases``: other names of keys; upper case, hyphens and spaces are accepted, too.
        """
        if not isinstance(node, yaml.MappingNode):
            self.note(node, f"{what} must be a mapping with {', '.join(known)}")
            return {}
        values: dict[str, yaml.Node] = {}
        for key, value in node.value:
            written = _display(key)
            name = _SEPARATOR.sub("_", written.strip().casefold())
            name = aliases.get(name, name)
            if name not in known:
                self.note(key, str(UnknownName(f"key of {what}", written, known)))
            elif name in values:
                self.note(key, f"duplicate key {name}, first on line {self.line(values[name])}")
            else:
                values[name] = value
        for name in needed:
            if name not in values:
                self.note(node, f"{what} has no {name}")
        return values

    def items(self, node: yaml.Node | None, name: str) -> list[yaml.Node]:
        """Return the nodes of a list; records an empty one."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.note(node, f"{name} must be a list that is not empty")
            return []
        return list(node.value)

    def text(self, node: yaml.Node | None, name: str) -> str:
        """Return a non-empty string; numbers count as strings."""
        if node is None or (isinstance(node, yaml.ScalarNode) and node.value.strip()):
            return one_line(node.value) if node is not None else ""
        self.note(node, f"{name} must be a string")
        return ""

    def word(self, node: yaml.Node | None, name: str, known: Mapping[str, str]) -> str:
        """Return the value of one of the known words; empty if absent or invalid."""
        if node is None:
            return ""
        word = _display(node)
        value = known.get(_SEPARATOR.sub("-", word.strip().casefold()))
        if value is None:
            self.note(node, str(UnknownName(name, word, dict.fromkeys(known.values()))))
        return value or ""

    def number(self, node: yaml.Node | None, name: str, minimum: int = 1) -> int | None:
        """Return an integer of at least ``least``; None if absent or invalid."""
        if node is None:
            return None
        values = _parse_integer(node)
        if values is None or values < minimum:
            self.note(
                node,
                f"{name} must be an integer of at least {minimum}, not {_display(node)!r}",
            )
            return None
        return values

    def numbers(self, node: yaml.Node | None, name: str) -> tuple[int, ...]:
        """Return the valid integers of a number or list, each at least 1."""
        nodes = self.items(node, name) if isinstance(node, yaml.SequenceNode) else [node]
        return tuple(values for each in nodes if (values := self.number(each, name)) is not None)

    def spans(self, node: yaml.Node | None, name: str, limit: int) -> tuple[int, ...]:
        """Parse ``3``, ``0-3``, ``0-1,4`` or a list of these, below ``limit``, in order."""
        nodes = (
            self.items(node, name)
            if isinstance(node, yaml.SequenceNode)
            else [node]
            if node is not None
            else []
        )
        values: list[int] = []
        for each in nodes:
            for part in _display(each, whole=True).split(","):
                first, separator, last = part.strip().replace("..", "-").partition("-")
                low, high = (
                    _parse_digits(first),
                    _parse_digits(last) if separator else _parse_digits(first),
                )
                if (
                    low is None
                    or high is None
                    or low > high
                    or high >= limit
                    or len(values) + high - low >= limit
                ):
                    self.note(each, f"{name} must be like 3, 0-3 or [0, 1], not {_display(each)!r}")
                    return ()
                values += range(low, high + 1)
        return tuple(values)


def _parse_integer(node: yaml.Node) -> int | None:
    return _parse_digits(node.value) if isinstance(node, yaml.ScalarNode) else None


def _parse_digits(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _display(node: yaml.Node, *, whole: bool = False) -> str:
    """Return a scalar's text, truncated for messages; else the node's type."""
    if not isinstance(node, yaml.ScalarNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    return node.value if whole or len(node.value) <= _MAX_SHOWN else f"{node.value[:_MAX_SHOWN]}…"

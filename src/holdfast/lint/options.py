"""Options of ``holdfast lint``: command line, or ``[tool.holdfast.lint]`` in pyproject.toml."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.report.source_findings import path_of

if TYPE_CHECKING:
    from holdfast.lint.rules.rule import Rule

_FILE = "pyproject.toml"
_MAX_BYTES = 1 << 20
_ALL = "all"
#: Expected types in the table, as error messages show them.
_EXPECTED = {
    "select": 'a list of rule names, e.g. ["SYNC"]',
    "ignore": 'a list of rule names, e.g. ["SYNC004"]',
    "exclude": 'a list of patterns, e.g. ["tests/*"]',
    "per-file-ignores": 'a table of lists of rule names, e.g. {"tests/*" = ["SYNC004"]}',
    "strict": "true or false",
}


class Pattern(msgspec.Struct, frozen=True):
    """A path pattern below ``root``: with a slash it matches the path, without one any component.

    A pattern that matches a folder matches everything in it.
    """

    root: str
    text: str

    def matches(self, path: str) -> bool:
        """Return True if the path matches or is inside a match."""
        text = self.text.rstrip("/")
        anywhere, text = text.startswith("**/"), text.removeprefix("**/")
        absolute = os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links
        relative = absolute.removeprefix(self.root.rstrip("/") + "/")
        parts = relative.strip("/").split("/")
        if "/" not in text:
            return any(
                fnmatchcase(part, text) for part in (parts[-1:] if relative == absolute else parts)
            )
        text = text.removeprefix("./")
        forms = (text, f"*/{text}") if anywhere else (text,)
        subject = absolute if text.startswith("/") else relative
        return any(
            fnmatchcase(subject.rsplit("/", up)[0], form)
            for up in range(len(parts))
            for form in forms
        )


class LintOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Selected rules, excluded paths, per-file ignores, and whether to report undecided cases.

    ``select`` and ``ignore`` hold rule names, codes, prefixes of codes (``SYNC``), or ``ALL``;
    ``source`` is the file that defines them.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    per_file_ignores: tuple[tuple[Pattern, tuple[str, ...]], ...] = ()
    strict: bool = False
    source: Path | None = None

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Return all rule names in the options."""
        return (
            *self.select,
            *self.ignore,
            *(name for _, names in self.per_file_ignores for name in names),
        )

    def rules(self) -> list[Rule]:
        """Return the selected rules.

        Raises:
          UnknownName: a name matches no rule or code.
        """
        # not at the top: a cached result without findings needs no rules (0.2 s)
        from holdfast.lint.rules.catalogue import RULES  # noqa: PLC0415
        from holdfast.lint.rules.rule import RuleTier  # noqa: PLC0415

        for word in self.rule_names:
            if not any(_selects(word, rule) for rule in RULES):
                known = {rule.name for rule in RULES} | {rule.cause.code for rule in RULES}
                raise UnknownName("rule", word, sorted(known))
        chosen = [
            rule
            for rule in RULES
            if not self.select or any(_selects(word, rule) for word in self.select)
        ]
        chosen = [rule for rule in chosen if self.strict or rule.tier is not RuleTier.UNSURE]
        return [rule for rule in chosen if not any(_selects(word, rule) for word in self.ignore)]

    def is_excluded(self, path: Path) -> bool:
        """Return True if a file or folder is excluded."""
        return any(pattern.matches(str(path)) for pattern in self.exclude)

    def ignores_in_file(self, rule: Rule, file: str) -> bool:
        """Return True if the rule is ignored in this file."""
        return any(
            any(_selects(word, rule) for word in names) and pattern.matches(path_of(file))
            for pattern, names in self.per_file_ignores
        )


#: Every rule, in every file.
ALL_RULES = LintOptions()


def parse_lint_options(
    paths: Sequence[Path],
    *,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    strict: bool | None = None,
) -> LintOptions:
    """Return the options for these paths; an argument that is None comes from the file.

    Raises:
      InvalidValue: the file is not valid.
      UnknownName: the file has an unknown key.
    """
    configured = load_configuration(paths)
    here = str(Path.cwd())
    return replace(
        configured,
        select=configured.select if select is None else tuple(select),
        ignore=configured.ignore if ignore is None else tuple(ignore),
        exclude=configured.exclude
        if exclude is None
        else tuple(Pattern(here, text) for text in exclude),
        strict=configured.strict if strict is None else strict,
    )


def load_configuration(paths: Sequence[Path]) -> LintOptions:
    """Return the options of the nearest pyproject.toml with ``[tool.holdfast.lint]``.

    The search goes upwards from the common folder of all paths.

    Raises:
      InvalidValue, UnknownName: as :func:`parse_lint_options`.
    """
    at = Path(os.path.commonpath([os.path.abspath(path) for path in paths]))  # noqa: PTH100
    for folder in (at, *at.parents):
        path = folder / _FILE
        if not os.path.isfile(path):  # noqa: PTH113 - Path's raises where a folder is closed
            continue
        table = _read_table(path)
        if table is not None:
            return _convert_table(path, table)
    return LintOptions()


def _read_table(path: Path) -> Any:
    """Return ``[tool.holdfast.lint]`` of a file; None if it has none."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if b"holdfast" not in content:  # a folder above may hold a template that is not valid TOML
            return None
        if len(content) > _MAX_BYTES:
            raise InvalidValue(path, why=f"larger than {_MAX_BYTES >> 20} MiB")
        document = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValue(path, why=f"not valid TOML: {error}") from None
    tool = document.get("tool")
    ours = tool.get("holdfast") if isinstance(tool, dict) else None
    if not isinstance(ours, dict):
        return None
    for name in ours:
        if name != "lint":
            raise UnknownName(f"table [tool.holdfast] in {path} with the name", name, ["lint"])
    return ours.get("lint")


class _OptionsTable(msgspec.Struct, rename="kebab"):
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = {}
    strict: bool = False


def _convert_table(path: Path, table: Any) -> LintOptions:
    where = f"[tool.holdfast.lint] in {path}"
    if isinstance(table, dict):
        for key in table:
            if key not in _EXPECTED:
                raise UnknownName(f"key of {where} with the name", key, _EXPECTED)
    try:
        read = msgspec.convert(table, _OptionsTable)
    except msgspec.ValidationError as error:
        key = re.search(r"`\$\.([\w-]+)", str(error))
        if key is None:
            raise InvalidValue(where, why="expected a table") from None
        raise InvalidValue(f"`{key[1]}` of {where}", why=f"expected {_EXPECTED[key[1]]}") from None
    root = str(path.parent)
    return LintOptions(
        select=read.select,
        ignore=read.ignore,
        exclude=tuple(Pattern(root, text) for text in read.exclude),
        per_file_ignores=tuple(
            (Pattern(root, text), names) for text, names in read.per_file_ignores.items()
        ),
        strict=read.strict,
        source=path,
    )


def _selects(word: str, rule: Rule) -> bool:
    name = word.lower()
    return name in (_ALL, rule.name, rule.cause.name) or (
        word != "" and rule.cause.code.startswith(word.upper())
    )

"""What ``holdfast lint`` is told: options of the command, else ``[tool.holdfast.lint]`` of a pyproject.toml."""

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

from holdfast.errors import BadValue, UnknownName
from holdfast.report.lint import path_of

if TYPE_CHECKING:
    from holdfast.rules.code.rule import Rule

_FILE = "pyproject.toml"
_MOST_BYTES = 1 << 20
_ALL = "all"
#: What stands in the table, and how it is said to who wrote something else.
_WANTED = {
    "select": 'a list of names of rules, as ["SYNC"]',
    "ignore": 'a list of names of rules, as ["SYNC004"]',
    "exclude": 'a list of patterns, as ["tests/*"]',
    "per-file-ignores": 'a table of patterns with lists of names, as {"tests/*" = ["SYNC004"]}',
    "strict": "true or false",
}


class Pattern(msgspec.Struct, frozen=True):
    """A pattern of paths below ``root``: with a slash it is held against the whole path, without one against each name.

    A folder that it means is meant with all that is in it.
    """

    root: str
    text: str

    def means(self, path: str) -> bool:
        """Whether the path is, or lies in, what the pattern says."""
        text = self.text.rstrip("/")
        anywhere, text = text.startswith("**/"), text.removeprefix("**/")
        whole = os.path.abspath(path)  # noqa: PTH100 - Path.resolve follows links, and a link has its own name
        below = whole.removeprefix(self.root.rstrip("/") + "/")
        parts = below.strip("/").split("/")
        if "/" not in text:
            return any(fnmatchcase(part, text) for part in (parts[-1:] if below == whole else parts))
        text = text.removeprefix("./")
        forms = (text, f"*/{text}") if anywhere else (text,)
        held = whole if text.startswith("/") else below
        return any(fnmatchcase(held.rsplit("/", up)[0], form) for up in range(len(parts)) for form in forms)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules judge, what is not read, which names are ignored in which files, and whether guesses are shown.

    ``select`` and ``ignore`` hold names of rules, codes of causes, beginnings of codes (``SYNC``), or ``ALL``;
    ``source`` is the file in which they stand.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    per_file_ignores: tuple[tuple[Pattern, tuple[str, ...]], ...] = ()
    strict: bool = False
    source: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names of rules that are said."""
        return (*self.select, *self.ignore, *(name for _, names in self.per_file_ignores for name in names))

    def rules(self) -> list[Rule]:
        """The rules that judge.

        Raises:
            UnknownName: there is no such rule or code.
        """
        from holdfast.rules.code.catalogue import RULES  # noqa: PLC0415 - and all causes: of no use where nothing is found
        from holdfast.rules.code.rule import Tier  # noqa: PLC0415

        for word in self.names:
            if not any(_means(word, rule) for rule in RULES):
                known = {rule.name for rule in RULES} | {rule.cause.code for rule in RULES}
                raise UnknownName("rule", word, sorted(known))
        chosen = [rule for rule in RULES if not self.select or any(_means(word, rule) for word in self.select)]
        chosen = [rule for rule in chosen if self.strict or rule.tier is not Tier.UNSURE]
        return [rule for rule in chosen if not any(_means(word, rule) for word in self.ignore)]

    def left_out(self, path: Path) -> bool:
        """Whether a file or folder is not to be read."""
        return any(pattern.means(str(path)) for pattern in self.exclude)

    def excuses(self, rule: Rule, file: str) -> bool:
        """Whether the rule is not to be heard in this file."""
        return any(
            any(_means(word, rule) for word in names) and pattern.means(path_of(file))
            for pattern, names in self.per_file_ignores
        )


#: Every rule, everywhere.
ALL = Options()


def given(
    paths: Sequence[Path],
    *,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    strict: bool | None = None,
) -> Options:
    """Options of the command for these paths; what is None is what the file says, and else nothing.

    Raises:
        BadValue: the file cannot be understood.
        UnknownName: a key in it is none.
    """
    found = configured(paths)
    here = str(Path.cwd())
    return replace(
        found,
        select=found.select if select is None else tuple(select),
        ignore=found.ignore if ignore is None else tuple(ignore),
        exclude=found.exclude if exclude is None else tuple(Pattern(here, text) for text in exclude),
        strict=found.strict if strict is None else strict,
    )


def configured(paths: Sequence[Path]) -> Options:
    """What the nearest pyproject.toml says that has ``[tool.holdfast.lint]``, from the folder of all paths upwards.

    Raises:
        BadValue, UnknownName: as :func:`given`.
    """
    at = Path(os.path.commonpath([os.path.abspath(path) for path in paths]))  # noqa: PTH100 - as above
    for folder in (at, *at.parents):
        path = folder / _FILE
        if not os.path.isfile(path):  # noqa: PTH113 - Path's raises where a folder is closed
            continue
        table = _table(path)
        if table is not None:
            return _options(path, table)
    return Options()


def _table(path: Path) -> Any:
    """``[tool.holdfast.lint]`` of a file; None where it is not there."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if b"holdfast" not in content:  # a template that is no TOML yet may stand in a folder above
            return None
        if len(content) > _MOST_BYTES:
            raise BadValue(path, why=f"it has more than {_MOST_BYTES >> 20} MiB")
        document = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise BadValue(path, why=f"it cannot be read as TOML: {error}") from None
    tool = document.get("tool")
    ours = tool.get("holdfast") if isinstance(tool, dict) else None
    if not isinstance(ours, dict):
        return None
    for name in ours:
        if name != "lint":
            raise UnknownName(f"table [tool.holdfast] in {path} with the name", name, ["lint"])
    return ours.get("lint")


class _Table(msgspec.Struct, rename="kebab"):
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = {}
    strict: bool = False


def _options(path: Path, table: Any) -> Options:
    where = f"[tool.holdfast.lint] in {path}"
    if isinstance(table, dict):
        for key in table:
            if key not in _WANTED:
                raise UnknownName(f"key of {where} with the name", key, _WANTED)
    try:
        read = msgspec.convert(table, _Table)
    except msgspec.ValidationError as error:
        key = re.search(r"`\$\.([\w-]+)", str(error))
        if key is None:
            raise BadValue(where, why="a table is wanted") from None
        raise BadValue(f"`{key[1]}` of {where}", why=f"{_WANTED[key[1]]} is wanted") from None
    root = str(path.parent)
    return Options(
        select=read.select,
        ignore=read.ignore,
        exclude=tuple(Pattern(root, text) for text in read.exclude),
        per_file_ignores=tuple((Pattern(root, text), names) for text, names in read.per_file_ignores.items()),
        strict=read.strict,
        source=path,
    )


def _means(word: str, rule: Rule) -> bool:
    name = word.lower()
    return name in (_ALL, rule.name, rule.cause.name) or (word != "" and rule.cause.code.startswith(word.upper()))

"""What is in a checkpoint, for the terminal: a headline, what is known about it, its tensors folded, what is missing.

Nothing here knows formats: who read the checkpoint fills in :class:`Inspected`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from holdfast.report.document import Document, Row, Section
from holdfast.report.evidence import size_text
from holdfast.report.text import one_line, plural

#: Lines of one kind that are printed; ``--tensors`` and ``--json`` have all of them.
SHOWN = 24
_NUMBER = re.compile(r"\d+")


class Line(msgspec.Struct, frozen=True):
    """One tensor: its name, its dtype, its shape, and the bytes of its numbers."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    files: tuple[str, ...] = ()


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What is said. ``about`` and ``optimizer`` are (word, text); ``missing`` is (kind, file, why)."""

    headline: str
    about: tuple[tuple[str, str], ...]
    tensors: tuple[Line, ...]
    optimizer: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()


class Folded(msgspec.Struct, frozen=True):
    """Tensors whose names differ in numbers alone, or only begin alike (``shape`` is empty then)."""

    name: str
    what: str
    count: int
    size: int


def render_inspected(seen: Inspected, *, file: TextIO, every: bool = False) -> None:
    """Print it; ``every`` tensor by itself, with the files it is in, instead of the folded list."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    tensors = [_row(line) for line in seen.tensors] if every else list(_folded_rows(seen.tensors))
    sections = (
        Section("about", tuple(Row(one_line(text), mark=word) for word, text in seen.about)),
        Section("tensors", tuple(tensors)),
        Section("optimizer", _cut([Row(one_line(text), mark=word) for word, text in seen.optimizer])),
        Section("values", _cut([Row(f"{one_line(path)}: {one_line(text)}") for path, text in seen.values])),
        Section("not whole", _cut([_missing(*each) for each in seen.missing])),
        Section("notes", _cut([Row(one_line(note)) for note in seen.notes])),
    )
    symbol, tone = ("✗", "error") if seen.missing else ("✓", "fine")
    shown = tuple(section for section in sections if section.rows)
    draw(Document(symbol, one_line(seen.headline), tone, shown), file, None)


def fold(lines: Sequence[Line], most: int = SHOWN) -> list[Folded]:
    """The tensors in ``most`` lines, if names allow: layers of one kind as one, then by the beginning of names."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[Line]] = {}
    for line in lines:
        groups.setdefault((_NUMBER.sub("*", line.name), line.dtype, line.shape), []).append(line)
    folded = [Folded(_ranged([each.name for each in group]), f"{dtype} {list(shape)}", len(group), _size(group))
              for (_, dtype, shape), group in groups.items()]  # fmt: skip
    for depth in range(max((each.name.count(".") for each in folded), default=0), 0, -1):
        if len(folded) <= most:
            break
        folded = list(_shorter(folded, depth))
    return folded


def _shorter(folded: Sequence[Folded], depth: int) -> Iterator[Folded]:
    """Those that share the first ``depth`` parts of their names as one; shorter names as they are."""
    groups: dict[str, list[Folded]] = {}
    for number, each in enumerate(folded):
        parts = each.name.split(".")
        key = ".".join(parts[:depth]) + "." if len(parts) > depth else f"\n{number}"  # of no other one
        groups.setdefault(key, []).append(each)
    for beginning, group in groups.items():
        if len(group) == 1:
            yield group[0]
        else:
            yield Folded(f"{beginning}…", "", sum(each.count for each in group), sum(each.size for each in group))


def _ranged(names: Sequence[str]) -> str:
    """The names as one, with what each number in them runs through: ``blocks.0-11.weight``."""
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    texts = iter([_range(sorted(set(column))) for column in zip(*numbers, strict=True)])
    return _NUMBER.sub(lambda _: next(texts), names[0])


def _range(values: Sequence[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    return f"{values[0]}-{values[-1]}" if values[-1] - values[0] == len(values) - 1 else "*"


def _folded_rows(lines: Sequence[Line]) -> Iterator[Row]:
    folded = fold(lines)
    wide = min(60, max((len(each.name) for each in folded), default=0))
    for each in folded[: 2 * SHOWN]:
        times = f"{each.count:,} of " if each.count > 1 else ""
        what = f"{times}{each.what}" if each.what else plural(each.count, "tensor")
        yield Row(f"{one_line(each.name):<{wide}}  {what}", aside=size_text(each.size))
    if len(folded) > 2 * SHOWN:
        yield Row(f"… and {len(folded) - 2 * SHOWN:,} more; --tensors lists all", style="aside")


def _row(line: Line) -> Row:
    where = f", in {plural(len(line.files), 'file')}" if len(line.files) > 1 else ""
    return Row(f"{one_line(line.name)}  {line.dtype} {list(line.shape)}", aside=size_text(line.size) + where)


def _missing(kind: str, file: str, why: str) -> Row:
    return Row(f"{one_line(file)}: {one_line(why)}" if file else one_line(why), mark=kind)


def _size(lines: Sequence[Line]) -> int:
    return sum(line.size for line in lines)


def _cut(rows: Sequence[Row]) -> tuple[Row, ...]:
    if len(rows) <= SHOWN + 1:
        return tuple(rows)
    return (*rows[:SHOWN], Row(f"… and {len(rows) - SHOWN:,} more; --json has all of them", style="aside"))

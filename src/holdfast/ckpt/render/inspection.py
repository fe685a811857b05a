"""Renders the contents of a checkpoint: headline, facts, folded tensor list, problems.

Format-independent: ``ckpt.inspection`` fills in :class:`InspectionView`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from holdfast.core.text import one_line, pluralize
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.evidence_summary import size_text
from holdfast.report.sheet import draw_document

#: Rows printed per section; ``--tensors`` and ``--json`` have all of them.
SHOWN = 24
_NUMBER = re.compile(r"\d+")


class TensorLine(msgspec.Struct, frozen=True):
    """One tensor: name, dtype, shape, size in bytes, files."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    files: tuple[str, ...] = ()


class InspectionView(msgspec.Struct, frozen=True, kw_only=True):
    """The printed view. ``about``, ``optimizer``: (label, text); ``missing``: (kind, file, why)."""

    headline: str
    about: tuple[tuple[str, str], ...]
    tensors: tuple[TensorLine, ...]
    optimizer: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()


class FoldedTensors(msgspec.Struct, frozen=True):
    """Tensors whose names differ only in numbers, or share a prefix (then ``what`` is empty)."""

    name: str
    what: str
    count: int
    size: int


def render_inspection(view: InspectionView, *, file: TextIO, every: bool = False) -> None:
    """Print the view; with ``every``, one line per tensor with its file count."""
    tensors = (
        [_tensor_row(line) for line in view.tensors] if every else list(_folded_rows(view.tensors))
    )
    sections = (
        ReportSection(
            "about", tuple(ReportRow(one_line(text), mark=label) for label, text in view.about)
        ),
        ReportSection("tensors", tuple(tensors)),
        ReportSection(
            "optimizer",
            _limit_rows([ReportRow(one_line(text), mark=label) for label, text in view.optimizer]),
        ),
        ReportSection(
            "values",
            _limit_rows(
                [ReportRow(f"{one_line(path)}: {one_line(text)}") for path, text in view.values]
            ),
        ),
        ReportSection(
            "incomplete", _limit_rows([_problem_row(*problem) for problem in view.missing])
        ),
        ReportSection("notes", _limit_rows([ReportRow(one_line(note)) for note in view.notes])),
    )
    symbol, tone = ("✗", "error") if view.missing else ("✓", "fine")
    shown = tuple(section for section in sections if section.rows)
    draw_document(ReportDocument(symbol, one_line(view.headline), tone, shown), file, None)


def fold_tensors(lines: Sequence[TensorLine], most: int = SHOWN) -> list[FoldedTensors]:
    """Fold tensors into ``most`` lines if possible: equal layers, then common prefixes."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[TensorLine]] = {}
    for line in lines:
        groups.setdefault((_NUMBER.sub("*", line.name), line.dtype, line.shape), []).append(line)
    folded = [
        FoldedTensors(
            _merge_names([line.name for line in group]),
            f"{dtype} {list(shape)}",
            len(group),
            _total_size(group),
        )
        for (_, dtype, shape), group in groups.items()
    ]
    for depth in range(max((line.name.count(".") for line in folded), default=0), 0, -1):
        if len(folded) <= most:
            break
        folded = list(_fold_by_prefix(folded, depth))
    return folded


def _fold_by_prefix(folded: Sequence[FoldedTensors], depth: int) -> Iterator[FoldedTensors]:
    """Fold names that share their first ``depth`` components; keep shorter names."""
    groups: dict[str, list[FoldedTensors]] = {}
    for number, line in enumerate(folded):
        parts = line.name.split(".")
        key = ".".join(parts[:depth]) + "." if len(parts) > depth else f"\n{number}"  # unique
        groups.setdefault(key, []).append(line)
    for beginning, group in groups.items():
        if len(group) == 1:
            yield group[0]
        else:
            yield FoldedTensors(
                f"{beginning}…",
                "",
                sum(line.count for line in group),
                sum(line.size for line in group),
            )


def _merge_names(names: Sequence[str]) -> str:
    """Merge names into one with the range of each number: ``blocks.0-11.weight``."""
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    texts = iter([_format_range(sorted(set(column))) for column in zip(*numbers, strict=True)])
    return _NUMBER.sub(lambda _: next(texts), names[0])


def _format_range(values: Sequence[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    return f"{values[0]}-{values[-1]}" if values[-1] - values[0] == len(values) - 1 else "*"


def _folded_rows(lines: Sequence[TensorLine]) -> Iterator[ReportRow]:
    folded = fold_tensors(lines)
    wide = min(60, max((len(line.name) for line in folded), default=0))
    for line in folded[: 2 * SHOWN]:
        count = f"{line.count:,} x " if line.count > 1 else ""
        what = f"{count}{line.what}" if line.what else pluralize(line.count, "tensor")
        yield ReportRow(f"{one_line(line.name):<{wide}}  {what}", aside=size_text(line.size))
    if len(folded) > 2 * SHOWN:
        yield ReportRow(
            f"… and {len(folded) - 2 * SHOWN:,} more; --tensors lists all", style="aside"
        )


def _tensor_row(line: TensorLine) -> ReportRow:
    where = f", in {pluralize(len(line.files), 'file')}" if len(line.files) > 1 else ""
    return ReportRow(
        f"{one_line(line.name)}  {line.dtype} {list(line.shape)}",
        aside=size_text(line.size) + where,
    )


def _problem_row(kind: str, file: str, why: str) -> ReportRow:
    return ReportRow(f"{one_line(file)}: {one_line(why)}" if file else one_line(why), mark=kind)


def _total_size(lines: Sequence[TensorLine]) -> int:
    return sum(line.size for line in lines)


def _limit_rows(rows: Sequence[ReportRow]) -> tuple[ReportRow, ...]:
    if len(rows) <= SHOWN + 1:
        return tuple(rows)
    return (
        *rows[:SHOWN],
        ReportRow(f"… and {len(rows) - SHOWN:,} more; --json has all of them", style="aside"),
    )

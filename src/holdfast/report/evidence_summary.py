"""Print which evidence files were read and which were skipped: one line per kind and per reason."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from holdfast.core.findings import Fact
from holdfast.core.text import one_line, pluralize
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document

#: Maximum file names per kind or reason; the JSON contains all of them.
NAMES = 3
REASONS = 8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render_evidence(
    read: Sequence[tuple[str, str, int]],
    skipped: Sequence[tuple[str, str]],
    *,
    file: TextIO,
    elapsed_s: float,
    width: int | None = None,
) -> None:
    """Print the files ``read`` (kind, name, bytes) and those ``skipped`` (name, reason).

    A common folder of several files is printed once.
    """
    folder = _common_folder([name for _, name, _ in read] + [name for name, _ in skipped])
    read = [(kind, name.removeprefix(folder), size) for kind, name, size in read]
    skipped = [(name.removeprefix(folder), why) for name, why in skipped]
    size = sum(bytes_read for _, _, bytes_read in read)
    headline = f"{pluralize(len(read), 'file')} read, {size_text(size)} in {elapsed_s:.1f} s"
    if skipped:
        headline += f"; {len(skipped):,} skipped"
    sections = (
        ReportSection("folder", (ReportRow(one_line(folder)),) if folder else ()),
        ReportSection("read", _by_kind(read)),
        ReportSection("skipped", _by_reason(skipped)),
    )
    shown = tuple(section for section in sections if section.rows)
    draw_document(ReportDocument("", headline, "plain", shown, framed=False), file, width)


def render_collectives(facts: Sequence[Fact], *, file: TextIO, width: int | None = None) -> None:
    """Print collectives that timed out or were slow in previous runs, and the advice, if any."""
    if not facts:
        return
    rows = [ReportRow(one_line(fact.text), mark="•") for fact in facts[:REASONS]]
    if len(facts) > REASONS:
        rows.append(ReportRow(f"… and {len(facts) - REASONS:,} more (see --json)", style="aside"))
    headline = "collectives that timed out or were slow in previous runs"
    draw_document(
        ReportDocument(
            "", headline, "plain", (ReportSection("history", tuple(rows)),), framed=False
        ),
        file,
        width,
    )


def _common_folder(names: Sequence[str]) -> str:
    """Return the folder of several files, with a slash at its end; empty if it is short."""
    if len(names) < 2 or len({name.startswith("/") for name in names}) > 1:
        return ""
    folder = os.path.commonpath([name.rpartition("/")[0] or "." for name in names])
    return f"{folder}/" if folder.strip("/").count("/") else ""


def _by_kind(read: Sequence[tuple[str, str, int]]) -> tuple[ReportRow, ...]:
    kinds: dict[str, list[str]] = {}
    for kind, name, _ in read:
        kinds.setdefault(kind, []).append(name)
    return tuple(
        ReportRow(f"{pluralize(len(names), kind)}: {_listed(names)}")
        for kind, names in kinds.items()
    )


def _by_reason(skipped: Sequence[tuple[str, str]]) -> tuple[ReportRow, ...]:
    """Return one row per reason, in order of appearance, so that a rare reason is not hidden."""
    reasons: dict[str, list[str]] = {}
    for name, why in skipped:
        reasons.setdefault(why, []).append(name)
    rows = [
        ReportRow(f"{_listed(names)}: {one_line(why)}")
        for why, names in list(reasons.items())[:REASONS]
    ]
    hidden = len(reasons) - REASONS
    return (
        (*rows, ReportRow(f"… and {hidden} more reasons (see --json)", style="aside"))
        if hidden > 0
        else tuple(rows)
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:NAMES])
    return shown if len(names) <= NAMES else f"{shown} and {len(names) - NAMES:,} more"


def size_text(size: float) -> str:
    """Format a size in bytes: ``12 B``, ``3.4 MiB``."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"

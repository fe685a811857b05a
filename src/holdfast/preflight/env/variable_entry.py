"""Print the entry of one variable: reader, timing, versions, values and effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TextIO

from holdfast.core.variable_table import READ_MOMENTS, ValueForm, VariableEntry, VariableStatus
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document

_READ = {
    ValueForm.PREFIX_NUMBER: "as a number, with strtoll, which ignores text after the digits: "
    "true is 0, 8M is 8",
    ValueForm.NUMBER: "as a number; other text is an error and may end the program",
    ValueForm.WORDS: "as yes or no; other words are an error",
    ValueForm.ZERO_ONE: "as 0 or 1; other text is ignored",
    ValueForm.CHOICE: "as one of these words, case-insensitive",
    ValueForm.EXACT: "as one of these words, case-sensitive; others are silently ignored",
    ValueForm.LIST: "as a list of these words; a leading ^ excludes them",
    ValueForm.TEXT: "as text",
}
_STATUS = {
    VariableStatus.ACTIVE: "",
    VariableStatus.DEPRECATED: "deprecated",
    VariableStatus.ALIAS: "old name, still read",
    VariableStatus.UNUSED: "declared but unused",
    VariableStatus.REMOVED: "removed",
    VariableStatus.NEVER_READ: "never read",
    VariableStatus.FRAMEWORK: "read by frameworks, not by torchrun",
    VariableStatus.TOOL: "for builds and tools, not for jobs",
}


def draw_variable(row: VariableEntry, file: TextIO, width: int | None = None) -> None:
    """Print the entry of a variable of torch, NCCL or related libraries."""
    owner = "" if row.owner == "none" else row.owner
    headline = f"{row.name} ({', '.join(part for part in (owner, _STATUS[row.status]) if part)})"
    draw_document(ReportDocument("", headline, "note", tuple(_sections(row))), file, width)


def draw_entry_parts(
    headline: str, parts: Mapping[str, str], file: TextIO, width: int | None = None
) -> None:
    """Print an entry of labels and texts; empty ones are omitted."""
    sections = tuple(
        ReportSection(label, (ReportRow(text),)) for label, text in parts.items() if text
    )
    draw_document(ReportDocument("", headline, "note", sections), file, width)


def _sections(row: VariableEntry) -> Iterable[ReportSection]:
    parts = {"what it does": f"{row.effect}."}
    if row.status not in (VariableStatus.NEVER_READ, VariableStatus.REMOVED, VariableStatus.TOOL):
        parts |= {
            "default": row.default or "not set",
            "unit": row.unit,
            "values": _values(row),
            "note": row.note,
            "read": f"{_READ[row.form]}; {READ_MOMENTS[row.read_at]}"
            if row.read_at
            else _READ[row.form],
        }
    parts |= {"since": _since(row), "instead": row.replaced_by, "source": row.evidence}
    for label, text in parts.items():
        if text:
            yield ReportSection(
                label, (ReportRow(text, style="strong" if label == "what it does" else "plain"),)
            )


def _values(row: VariableEntry) -> str:
    bounds = [
        f"from {row.minimum}" if row.minimum is not None else "",
        f"to {row.maximum}" if row.maximum else "",
        f"in steps of {row.multiple_of}" if row.multiple_of else "",
    ]
    values = [
        ", ".join(row.choices),
        " ".join(part for part in bounds if part),
        row.syntax,
        ", ".join(row.keys),
    ]
    return "; ".join(part for part in values if part)


def _since(row: VariableEntry) -> str:
    parts = [
        f"{row.library} {row.since}" if row.since else "",
        f"removed in {row.removed_in}" if row.removed_in else "",
    ]
    return ", ".join(part for part in parts if part)

"""Shows what is known of one variable: who reads it, when, since when, what it may be, and what it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TextIO

from holdfast.report.document import Document, Row, Section
from holdfast.variables import MOMENTS, Form, Status, Variable

_READ = {
    Form.PREFIX_NUMBER: "as a number, by strtoll, which stops without a word at what is no digit: true is 0, 8M is 8",
    Form.NUMBER: "as a number; other text is refused, and may end the program",
    Form.WORDS: "as yes or no; other words raise an error",
    Form.ZERO_ONE: "as 0 or 1; other text is ignored",
    Form.CHOICE: "as one of these words, in small letters or capitals",
    Form.EXACT: "as one of these words, exactly so; others are ignored without a word",
    Form.LIST: "as a list of these words; ^ in front leaves them out",
    Form.TEXT: "as text",
}
_STATUS = {
    Status.ACTIVE: "", Status.DEPRECATED: "deprecated", Status.ALIAS: "an old name that is still read",
    Status.UNUSED: "declared, and consulted nowhere", Status.REMOVED: "not read any more",
    Status.NEVER_READ: "read by nobody", Status.FRAMEWORK: "read by frameworks, not by torchrun",
    Status.TOOL: "for builds and tools, not for a job",
}  # fmt: skip


def draw_variable(row: Variable, file: TextIO, width: int | None = None) -> None:
    """Print the entry of a variable of torch, NCCL and what stands around them."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    whose = "" if row.owner == "none" else row.owner
    headline = f"{row.name} ({', '.join(part for part in (whose, _STATUS[row.status]) if part)})"
    draw(Document("", headline, "note", tuple(_sections(row))), file, width)


def draw_parts(headline: str, parts: Mapping[str, str], file: TextIO, width: int | None = None) -> None:
    """Print an entry of labels and texts, without those that are empty."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - as above

    sections = tuple(Section(label, (Row(text),)) for label, text in parts.items() if text)
    draw(Document("", headline, "note", sections), file, width)


def _sections(row: Variable) -> Iterable[Section]:
    parts = {"what it does": f"{row.effect}."}
    if row.status not in (Status.NEVER_READ, Status.REMOVED, Status.TOOL):
        parts |= {
            "default": row.default or "not set", "unit": row.unit, "values": _values(row), "note": row.note,
            "is read": f"{_READ[row.form]}; {MOMENTS[row.read_at]}" if row.read_at else _READ[row.form],
        }  # fmt: skip
    parts |= {"since": _since(row), "instead": row.replaced_by, "source": row.evidence}
    for label, text in parts.items():
        if text:
            yield Section(label, (Row(text, style="strong" if label == "what it does" else "plain"),))


def _values(row: Variable) -> str:
    bounds = [f"from {row.minimum}" if row.minimum is not None else "", f"to {row.maximum}" if row.maximum else "",
              f"in steps of {row.multiple_of}" if row.multiple_of else ""]  # fmt: skip
    told = [", ".join(row.choices), " ".join(part for part in bounds if part), row.syntax, ", ".join(row.keys)]
    return "; ".join(part for part in told if part)


def _since(row: Variable) -> str:
    parts = [f"{row.library} {row.since}" if row.since else "", f"gone in {row.removed_in}" if row.removed_in else ""]
    return ", ".join(part for part in parts if part)

"""What was read and what was passed over, for the terminal: a line for each kind of file and each reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from holdfast.findings import Fact
from holdfast.report.document import Document, Row, Section
from holdfast.report.text import one_line, plural

#: Names that stand behind a kind or a reason; the JSON has all of them.
NAMES = 3
REASONS = 8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render_evidence(
    read: Sequence[tuple[str, str, int]],
    ignored: Sequence[tuple[str, str]],
    *,
    file: TextIO,
    elapsed_s: float,
    width: int | None = None,
) -> None:
    """Print what was ``read`` (kind, name, bytes each) in so many seconds, and what was ``ignored`` (name, why)."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    size = sum(bytes_read for _, _, bytes_read in read)
    headline = f"{plural(len(read), 'file')} read, {size_text(size)} in {elapsed_s:.1f} s"
    if ignored:
        headline += f"; {len(ignored):,} ignored"
    sections = (Section("read", _by_kind(read)), Section("ignored", _by_reason(ignored)))
    shown = tuple(section for section in sections if section.rows)
    draw(Document("", headline, "plain", shown, framed=False), file, width)


def render_collectives(facts: Sequence[Fact], *, file: TextIO, width: int | None = None) -> None:
    """Print which collectives timed out or were slow over the runs, and what follows; nothing where there are none."""
    if not facts:
        return
    from holdfast.report.sheet import draw  # noqa: PLC0415 - as above

    rows = [Row(one_line(fact.text), mark="•") for fact in facts[:REASONS]]
    if len(facts) > REASONS:
        rows.append(Row(f"… and {len(facts) - REASONS:,} more; --json has all of them", style="aside"))
    headline = "collectives that timed out or were slow, over all runs"
    draw(Document("", headline, "plain", (Section("history", tuple(rows)),), framed=False), file, width)


def _by_kind(read: Sequence[tuple[str, str, int]]) -> tuple[Row, ...]:
    kinds: dict[str, list[str]] = {}
    for kind, name, _ in read:
        kinds.setdefault(kind, []).append(name)
    return tuple(Row(f"{plural(len(names), kind)}: {_listed(names)}") for kind, names in kinds.items())


def _by_reason(ignored: Sequence[tuple[str, str]]) -> tuple[Row, ...]:
    """The commonest reason last would hide the odd one: they stand in the order in which they came up."""
    reasons: dict[str, list[str]] = {}
    for name, why in ignored:
        reasons.setdefault(why, []).append(name)
    rows = [Row(f"{_listed(names)}: {one_line(why)}") for why, names in list(reasons.items())[:REASONS]]
    hidden = len(reasons) - REASONS
    return (
        (*rows, Row(f"… and {hidden} more reasons; --json has all of them", style="aside"))
        if hidden > 0
        else tuple(rows)
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:NAMES])
    return shown if len(names) <= NAMES else f"{shown} and {len(names) - NAMES:,} more"


def size_text(size: float) -> str:
    """A size for people: ``12 B``, ``3.4 MiB``."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"

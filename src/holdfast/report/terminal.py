"""Print a verdict on the terminal: the first line states the result.

This module chooses the content and its order as sections of plain text; ``sheet.py`` prints them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import msgspec

from holdfast.causes.translations import Translate, translated_summary, translator
from holdfast.core.findings import Fact, Finding, Level, Remedy, Verdict
from holdfast.core.rank_sets import (
    FoldedFinding,
    RankGroup,
    fold_findings,
    rank_label,
)
from holdfast.core.text import format_duration, format_percent, one_line
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.sheet import draw_document
from holdfast.report.stack_tree import ThreadTree, tree_rows
from holdfast.report.verdict_summary import other_causes

#: Maximum printed lines per section; the HTML report and the JSON contain all of them.
MAX_ROWS = 6
MAX_REMEDIES = 3
MAX_BRANCHES = 24

INCONCLUSIVE = "inconclusive: not enough evidence (see 'not checked' below)"
MARKS = {Level.ERROR: "✗", Level.WARNING: "⚠", Level.NOTE: "•", Level.UNKNOWN: "?"}


def render_verdict(  # noqa: PLR0913 - keyword-only options of one output
    verdict: Verdict,
    *,
    file: TextIO | None = None,
    html: str | None = None,
    action: str | None = None,
    elapsed_s: float | None = None,
    groups: Sequence[RankGroup] = (),
    width: int | None = None,
    inconclusive: bool = False,
    warning_headline: str = "",
) -> None:
    """Print ``verdict`` to ``file`` (default: the current stderr) in one write.

    ``html`` is the path of the page, ``action`` what happens next (``restart 1 of 3``),
    ``elapsed_s`` the seconds from the fault to the verdict, ``groups`` what each set of ranks is
    doing, ``width`` the number of columns (default: the terminal's, 80 without a terminal, at most
    120). ``inconclusive``: a missing root does not mean that nothing failed. ``warning_headline``:
    the headline if there are suspects but no root, for questions whose suspects are only warnings
    and notes.
    Labels, remedies and the summary of the cause are in the chosen language (``--lang``).
    Colours are used only on a terminal and not if NO_COLOR is set; symbols that the encoding lacks
    become ASCII.
    """
    file = file or sys.stderr
    translate = translator(getattr(file, "encoding", None))
    document = _verdict_document(verdict, groups, elapsed_s, translate)
    if inconclusive and verdict.root is None and not verdict.suspects:
        document = msgspec.structs.replace(
            document, symbol=MARKS[Level.UNKNOWN], headline=INCONCLUSIVE, tone="unknown"
        )
    if warning_headline and verdict.root is None and verdict.suspects:
        only_notes = all(suspect.level is Level.NOTE for suspect in verdict.suspects)
        level = Level.NOTE if only_notes else Level.WARNING
        document = msgspec.structs.replace(
            document, symbol=MARKS[level], headline=warning_headline, tone=str(level)
        )
    footer = [_section("action", [ReportRow(action, style="strong")])] if action else []
    footer += [_section("report", [ReportRow(html, style="path")])] if html else []
    document = msgspec.structs.replace(document, sections=(*document.sections, *footer))
    draw_document(document, file, width)


def render_stacks(
    trees: Sequence[ThreadTree], *, file: TextIO | None = None, width: int | None = None
) -> None:
    """Print the merged stacks of many ranks, or nothing. ``file`` and ``width`` as above."""
    section = _section("stacks", _cut(tree_rows(trees), MAX_BRANCHES))
    if section.rows:
        headline = "merged stacks of all ranks, outermost frame first"
        document = ReportDocument("", headline, "plain", (section,), framed=False)
        draw_document(document, file or sys.stderr, width)


def _verdict_document(
    verdict: Verdict, groups: Sequence[RankGroup], elapsed_s: float | None, translate: Translate
) -> ReportDocument:
    sections = tuple(
        section for section in _sections(verdict, groups, elapsed_s, translate) if section.rows
    )
    if verdict.root is not None:
        level = verdict.root.level
        return ReportDocument(MARKS[level], one_line(verdict.root.message), str(level), sections)
    if verdict.suspects:
        return ReportDocument(
            "?", "no single root cause; see 'other causes' below", "unknown", sections
        )
    return ReportDocument(
        "✓",
        "nothing failed" + (" in the available evidence" if verdict.unseen else ""),
        "fine",
        sections,
    )


def _sections(
    verdict: Verdict, groups: Sequence[RankGroup], elapsed_s: float | None, translate: Translate
) -> Iterable[ReportSection]:
    if verdict.root is None:
        yield _section("question", [ReportRow(verdict.question)] if verdict.question else [])
    else:
        summary = translated_summary(verdict.root.cause, translate)
        named = ReportRow(_cause(verdict.root, elapsed_s), style="strong")
        yield _section("cause", [named, *([ReportRow(summary)] if summary else [])])
    yield _section("ranks", _cut([_group_row(group) for group in groups]))
    yield _list(
        "consequences", [ReportRow(fold.sentence) for fold in fold_findings(verdict.consequences)]
    )
    if verdict.root is not None:
        yield _list("evidence", _evidence(verdict.root.evidence))
        yield _section("remedy", _remedies(verdict.root.remedies))
    yield _list("other causes", [_suspect(fold) for fold in other_causes(verdict)])
    yield _list(
        "ruled out",
        [ReportRow(f"{one_line(out.cause)}: {one_line(out.why)}") for out in verdict.ruled_out],
    )
    yield _list("not checked", [ReportRow(text) for text in verdict.unseen])


def _section(label: str, rows: Sequence[ReportRow]) -> ReportSection:
    return ReportSection(label, tuple(rows))


def _list(label: str, rows: list[ReportRow]) -> ReportSection:
    """Return at most MAX_ROWS rows; several rows get bullets, because rows wrap."""
    bullet = "•" if len(rows) > 1 else ""
    return _section(label, _cut([msgspec.structs.replace(row, mark=bullet) for row in rows]))


def _cut(rows: list[ReportRow], shown: int = MAX_ROWS) -> list[ReportRow]:
    if len(rows) <= shown + 1:
        return rows
    return [*rows[:shown], ReportRow(f"… and {len(rows) - shown:,} more", style="aside")]


def _cause(root: Finding, elapsed_s: float | None) -> str:
    after = f", {format_duration(elapsed_s)} after the fault" if elapsed_s is not None else ""
    return f"{root.code} {root.cause} ({format_percent(root.confidence)} confidence){after}"


def _group_row(group: RankGroup) -> ReportRow:
    return ReportRow(
        group.doing + (f" at {group.place}" if group.place else ""), mark=rank_label(group.ranks)
    )


def _suspect(fold: FoldedFinding) -> ReportRow:
    claim = fold.claim
    cause = f"{claim.code} {claim.cause}, {format_percent(claim.confidence)}"
    return ReportRow(f"{fold.sentence} ({cause})")


def _evidence(facts: Sequence[Fact]) -> list[ReportRow]:
    return [ReportRow(fact.text, aside=_origin(fact)) for fact in facts]


def _origin(fact: Fact) -> str:
    text = f"{fact.text} {fact.origin}"
    subjects = (f"rank {fact.rank}" if fact.rank is not None else "", fact.host or "")
    missing = [
        subject
        for subject in subjects
        if subject and not re.search(rf"(?<!\w){re.escape(subject)}(?!\w)", text)
    ]
    return ", ".join(part for part in (fact.origin, *missing) if part)


def _remedies(remedies: Sequence[Remedy]) -> list[ReportRow]:
    rows: list[ReportRow] = []
    for number, remedy in enumerate(remedies[:MAX_REMEDIES], 1):
        mark = f"{number}." if len(remedies) > 1 else ""
        rows.append(ReportRow(remedy.text, mark=mark, aside=remedy.safety.risk))
        rows += [
            ReportRow(line, style="command")
            for line in (remedy.command or "").splitlines()
            if line.strip()
        ]
    hidden = len(remedies) - MAX_REMEDIES
    return [*rows, ReportRow(f"… and {hidden} more", style="aside")] if hidden > 0 else rows

"""A verdict or findings for the person who reads a terminal at three in the morning: the first line says it.

This file decides what is said and in which order, as sections of plain text; ``sheet.py`` lays them out with rich,
which is imported when the first report is printed and not before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

import msgspec

from holdfast.findings import Fact, Finding, Level, Remedy, Subject, Verdict
from holdfast.report.document import Document, Row, Section
from holdfast.report.ranksets import (
    Folded,
    RankGroup,
    compress_ranks,
    fold_findings,
    rank_label,
    say_ranks,
)
from holdfast.report.stacks import ThreadTree
from holdfast.report.stacks import rows as tree_rows
from holdfast.report.text import duration, one_line, percent, plural

__all__ = [
    "RankGroup", "compress_ranks", "rank_label", "render_findings", "render_stacks", "render_verdict", "say_ranks",
]  # fmt: skip

#: How many lines of one kind are printed; the HTML report and the JSON have all of them.
SHOWN = 6
SHOWN_REMEDIES = 3
SHOWN_BRANCHES = 24

UNDECIDED = "it could not be judged; see what is unseen"
MARKS = {Level.ERROR: "✗", Level.WARNING: "⚠", Level.NOTE: "•", Level.UNKNOWN: "?"}
_GRAVEST_FIRST = (Level.ERROR, Level.UNKNOWN, Level.WARNING, Level.NOTE)


def render_verdict(  # noqa: PLR0913 - what surrounds a verdict, each with a name
    verdict: Verdict,
    *,
    file: TextIO | None = None,
    html: str | None = None,
    decision: str | None = None,
    elapsed_s: float | None = None,
    groups: Sequence[RankGroup] = (),
    width: int | None = None,
    undecided: bool = False,
    merely: str = "",
) -> None:
    """Print ``verdict`` on ``file`` (default: stderr as it is at the call), in one write.

    ``html`` is the path of the page, ``decision`` what happens now (``restart 1 of 3``), ``elapsed_s`` the seconds from
    the fault to the verdict, ``groups`` what each set of ranks does, ``width`` the columns to fill (default: those of
    the terminal, 80 where there is none, never over 120). ``undecided``: that no root was found does not mean that
    nothing failed. ``merely``: the headline where there are suspects and no root, for questions
    whose suspects are no more than warnings. Colours appear on a terminal alone and not under NO_COLOR;
    an encoding that lacks a symbol gets an ASCII one.
    """
    document = _verdict_document(verdict, groups, elapsed_s)
    if undecided and verdict.root is None and not verdict.suspects:
        document = msgspec.structs.replace(document, symbol=MARKS[Level.UNKNOWN], headline=UNDECIDED, tone="unknown")
    if merely and verdict.root is None and verdict.suspects:
        document = msgspec.structs.replace(document, symbol=MARKS[Level.WARNING], headline=merely, tone="warning")
    ends = [_words("decision", [Row(decision, style="strong")])] if decision else []
    ends += [_words("report", [Row(html, style="path")])] if html else []
    _draw(msgspec.structs.replace(document, sections=(*document.sections, *ends)), file, width)


def render_findings(findings: Sequence[Finding], *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print ``findings``, the gravest first, each with its evidence and remedies, then their number by level.

    Findings that differ in their rank alone are shown as one. ``file`` and ``width`` as in :func:`render_verdict`.
    """
    ordered = sorted(findings, key=lambda claim: _GRAVEST_FIRST.index(claim.level))
    for fold in fold_findings(ordered):
        level = fold.claim.level
        _draw(Document(MARKS[level], fold.sentence, str(level), tuple(_about(fold.claim)), framed=False), file, width)
    _draw(_tally(findings), file, width)


def render_stacks(trees: Sequence[ThreadTree], *, file: TextIO | None = None, width: int | None = None) -> None:
    """Print the stacks of many ranks, merged; nothing where there are none. ``file`` and ``width`` as above."""
    section = _words("stacks", _cut(tree_rows(trees), SHOWN_BRANCHES))
    if section.rows:
        headline = "where the ranks are, outermost frame first"
        _draw(Document("", headline, "plain", (section,), framed=False), file, width)


def _draw(document: Document, file: TextIO | None, width: int | None) -> None:
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    draw(document, file or sys.stderr, width)


def _verdict_document(verdict: Verdict, groups: Sequence[RankGroup], elapsed_s: float | None) -> Document:
    sections = tuple(section for section in _sections(verdict, groups, elapsed_s) if section.rows)
    if verdict.root is not None:
        level = verdict.root.level
        return Document(MARKS[level], one_line(verdict.root.message), str(level), sections)
    if verdict.suspects:
        return Document("?", "no root cause could be named; the suspects are below", "unknown", sections)
    return Document("✓", "nothing failed" + (", as far as could be seen" if verdict.unseen else ""), "fine", sections)


def _sections(verdict: Verdict, groups: Sequence[RankGroup], elapsed_s: float | None) -> Iterable[Section]:
    if verdict.root is None:
        yield _words("question", [Row(verdict.question)] if verdict.question else [])
    else:
        yield _words("cause", [Row(_cause(verdict.root, elapsed_s), style="strong")])
    yield _words("ranks", _cut([_group_row(group) for group in groups]))
    yield _list("consequences", [Row(fold.sentence) for fold in fold_findings(verdict.consequences)])
    if verdict.root is not None:
        yield _list("evidence", _evidence(verdict.root.evidence))
        yield _words("remedy", _remedies(verdict.root.remedies))
    yield _list("suspects", [_suspect(fold) for fold in fold_findings(verdict.suspects)])
    yield _list("ruled out", [Row(f"{one_line(out.cause)}: {one_line(out.why)}") for out in verdict.ruled_out])
    yield _list("unseen", [Row(text) for text in verdict.unseen])


def _words(label: str, rows: Sequence[Row]) -> Section:
    return Section(label, tuple(rows))


def _list(label: str, rows: list[Row]) -> Section:
    """As many rows as a person reads; a bullet before each where there are several, since rows wrap."""
    bullet = "•" if len(rows) > 1 else ""
    return _words(label, _cut([msgspec.structs.replace(row, mark=bullet) for row in rows]))


def _cut(rows: list[Row], shown: int = SHOWN) -> list[Row]:
    if len(rows) <= shown + 1:
        return rows
    return [*rows[:shown], Row(f"… and {len(rows) - shown:,} more", style="aside")]


def _cause(root: Finding, elapsed_s: float | None) -> str:
    found = f", found in {duration(elapsed_s)}" if elapsed_s is not None else ""
    return f"{root.code} {root.cause} ({percent(root.confidence)} sure){found}"


def _group_row(group: RankGroup) -> Row:
    return Row(group.doing + (f" at {group.place}" if group.place else ""), mark=rank_label(group.ranks))


def _suspect(fold: Folded) -> Row:
    return Row(f"{fold.sentence} ({fold.claim.code} {fold.claim.cause}, {percent(fold.claim.confidence)})")


def _evidence(facts: Sequence[Fact]) -> list[Row]:
    return [Row(fact.text, aside=_origin(fact)) for fact in facts]


def _origin(fact: Fact) -> str:
    said = f"{fact.text} {fact.origin}"
    whom = (f"rank {fact.rank}" if fact.rank is not None else "", fact.host or "")
    unsaid = [word for word in whom if word and not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said)]
    return ", ".join(part for part in (fact.origin, *unsaid) if part)


def _remedies(remedies: Sequence[Remedy]) -> list[Row]:
    rows: list[Row] = []
    for number, remedy in enumerate(remedies[:SHOWN_REMEDIES], 1):
        mark = f"{number}." if len(remedies) > 1 else ""
        rows.append(Row(remedy.text, mark=mark, aside=str(remedy.safety)))
        rows += [Row(line, style="command") for line in (remedy.command or "").splitlines() if line.strip()]
    hidden = len(remedies) - SHOWN_REMEDIES
    return [*rows, Row(f"… and {hidden} more", style="aside")] if hidden > 0 else rows


def _about(claim: Finding) -> Iterable[Section]:
    place = _subject(claim.subject)
    cause = f"{claim.code} {claim.cause}" + (f" ({percent(claim.confidence)} sure)" if claim.confidence < 1 else "")
    sections = (
        _words("cause", [Row(cause, style="strong")]),
        _words("where", [Row(place)] if place else []),
        _list("evidence", _evidence(claim.evidence)),
        _words("remedy", _remedies(claim.remedies)),
    )
    return (section for section in sections if section.rows)


def _subject(subject: Subject) -> str:
    line = f":{subject.line}" if subject.line is not None else ""
    parts = (
        f"{subject.file}{line}" if subject.file else "",
        f"host {subject.host}" if subject.host else "",
        f"GPU {subject.gpu}" if subject.gpu is not None else "",
        f"link {subject.link}" if subject.link else "",
    )
    return ", ".join(part for part in parts if part)


def _tally(findings: Sequence[Finding]) -> Document:
    if not findings:
        return Document("✓", "no findings", "fine", framed=False)
    counts = [(level, sum(claim.level == level for claim in findings)) for level in _GRAVEST_FIRST]
    words = {Level.UNKNOWN: "could not be judged", Level.NOTE: "note"}
    texts = [
        f"{count} {words[level]}" if level == Level.UNKNOWN else plural(count, words.get(level, str(level)))
        for level, count in counts
        if count
    ]
    return Document("", ", ".join(texts), "plain", framed=False)

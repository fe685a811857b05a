"""Write a verdict as a few lines of plain text, for a chat or an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.findings import Finding, Remedy, Subject, Verdict
from holdfast.core.rank_sets import FoldedFinding, fold_findings
from holdfast.core.text import escape_invisible, format_percent, one_line
from holdfast.report.page_text import clip
from holdfast.report.source_windows import SourceWindow

MAX_LINE = 400
MAX_NAME = 100
#: Consequences and causes that are listed.
MAX_CLAIMS = 3


def other_causes(verdict: Verdict) -> list[FoldedFinding]:
    """Return the suspects, folded, without those that repeat the root."""
    root = verdict.root
    return [
        fold
        for fold in fold_findings(verdict.suspects)
        if root is None or (fold.claim.code, fold.claim.message) != (root.code, root.message)
    ]


def verdict_summary(
    verdict: Verdict, headline: str, *, when: str = "", source: Sequence[SourceWindow] = ()
) -> str:
    """Return cause, rank, line, waiting ranks, first remedy and what was not visible, as text.

    ``headline`` is the first line, ``when`` the last one: incident and time.
    """
    lines = [_line(headline)]
    if verdict.root is not None:
        lines += [_line(text) for text in _about_root(verdict.root)]
        lines += _code(source)
    lines += [
        _line(f"Effect: {fold.sentence}")
        for fold in fold_findings(verdict.consequences)[:MAX_CLAIMS]
    ]
    if verdict.root is not None:
        lines += _remedy(verdict.root.remedies)
    lines += [
        _line(f"Other possible cause: {fold.sentence} ({fold.claim.code} {fold.claim.cause})")
        for fold in other_causes(verdict)[:MAX_CLAIMS]
    ]
    lines += [_line(f"Not visible: {text}") for text in verdict.unseen[:MAX_CLAIMS]]
    return "\n".join([*lines, *([_line(when)] if when else [])])


def describe_subject(subject: Subject) -> str:
    """Return ``rank 2 on node-00, GPU 1``; empty if the finding is about no rank, host or link."""
    rank = f"rank {subject.rank}" if subject.rank is not None else ""
    whom = " on ".join(part for part in (rank, clip(subject.host or "", MAX_NAME)) if part)
    gpu = f"GPU {subject.gpu}" if subject.gpu is not None else ""
    link = f"link {clip(subject.link, MAX_NAME)}" if subject.link else ""
    return ", ".join(part for part in (whom, gpu, link) if part)


def _about_root(root: Finding) -> Iterable[str]:
    yield f"Cause: {root.code} {root.cause}, {format_percent(root.confidence)} confidence"
    if whom := describe_subject(root.subject):
        yield f"Where: {whom}"
    if root.subject.file:
        line = f":{root.subject.line}" if root.subject.line is not None else ""
        yield f"Line: {root.subject.file}{line}"


def _code(source: Sequence[SourceWindow]) -> list[str]:
    rows = [row for window in source[:1] for row in window.rows if row.root]
    return [f"    {clip(escape_invisible(row.code.strip()), MAX_LINE)}" for row in rows]


def _remedy(remedies: Sequence[Remedy]) -> list[str]:
    if not remedies:
        return []
    command = escape_invisible(clip(remedies[0].command or "", MAX_LINE)).splitlines()
    return [_line(f"Remedy: {remedies[0].text}"), *(f"    {line}" for line in command)]


def _line(text: str) -> str:
    return clip(one_line(text), MAX_LINE)

"""Order the findings of host checks into one verdict."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.findings import Finding, Level, Verdict

QUESTION = "are these hosts ready for training?"
_MOST_SEVERE_FIRST = (Level.ERROR, Level.UNKNOWN, Level.WARNING)


def host_verdict(
    findings: Sequence[Finding], unseen: Sequence[str], question: str = QUESTION
) -> Verdict:
    """Return the verdict: the most severe finding is the root if it is an error or unknown.

    Other warnings, errors and unknowns become suspects; notes are omitted. Within a level, higher
    confidence comes first.
    """
    severe = [finding for finding in findings if finding.level in _MOST_SEVERE_FIRST]
    severe.sort(key=lambda finding: (_MOST_SEVERE_FIRST.index(finding.level), -finding.confidence))
    root = severe[0] if severe and severe[0].level is not Level.WARNING else None
    return Verdict(
        question=question,
        root=root,
        suspects=tuple(finding for finding in severe if finding is not root),
        unseen=tuple(unseen),
    )

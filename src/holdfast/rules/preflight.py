"""From what the checks of hosts found to one answer: may a job start here?"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.findings import Finding, Level, Verdict

QUESTION = "is this set of machines fit to train?"
_GRAVEST_FIRST = (Level.ERROR, Level.UNKNOWN, Level.WARNING)


def verdict(findings: Sequence[Finding], unseen: Sequence[str], question: str = QUESTION) -> Verdict:
    """The gravest finding is the root where it is an error or keeps from judging; the others are suspects.

    Notes are in the findings and not in the verdict. Among those of one level the surer one comes first.
    """
    graves = [claim for claim in findings if claim.level in _GRAVEST_FIRST]
    graves.sort(key=lambda claim: (_GRAVEST_FIRST.index(claim.level), -claim.confidence))
    root = graves[0] if graves and graves[0].level is not Level.WARNING else None
    return Verdict(
        question=question, root=root, suspects=tuple(claim for claim in graves if claim is not root),
        unseen=tuple(unseen),
    )  # fmt: skip

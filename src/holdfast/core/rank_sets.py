"""Format sets of ranks compactly, and fold findings that differ only in their rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from holdfast.core.findings import Finding
from holdfast.core.text import one_line

#: From this many ranks on, a set is followed by its size.
COUNTED_FROM = 9


class RankGroup(msgspec.Struct, frozen=True):
    """Ranks in the same state.

    ``doing`` (``in all_reduce #31 of DDP``) at ``place`` (file:line).
    """

    ranks: tuple[int, ...]
    doing: str
    place: str = ""


class FoldedFinding(msgspec.Struct, frozen=True):
    """Findings that differ only in their rank.

    The first one, all ranks, and the sentence to show.
    """

    claim: Finding
    ranks: tuple[int, ...]
    sentence: str


def compress_ranks(ranks: Iterable[int], limit: int | None = None) -> str:
    """Return ``0-1,3`` for ranks 0, 1 and 3, in any order; empty for no rank.

    With ``limit``, at most that many ranges are written, then ``…``.
    """
    ordered = sorted(set(ranks))
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    ]
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if limit is not None and len(ranges) > limit:
        ranges = [*ranges[:limit], "…"]
    return ",".join(ranges)


def rank_label(ranks: Iterable[int]) -> str:
    """Return ``2``, ``0-1,3`` or ``0-1,3-1023 (1023)``, short enough for a column."""
    members = set(ranks)
    text = compress_ranks(members, limit=6)
    return f"{text} ({len(members)})" if len(members) >= COUNTED_FROM else text


def describe_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 2``, ``ranks 0-1,3`` or ``ranks 0-1,3-1023 (1023 ranks)``."""
    members = set(ranks)
    if len(members) == 1:
        return f"rank {compress_ranks(members)}"
    text = f"ranks {compress_ranks(members, limit=6)}"
    return f"{text} ({len(members)} ranks)" if len(members) >= COUNTED_FROM else text


def fold_findings(findings: Sequence[Finding]) -> list[FoldedFinding]:
    """Fold findings with the group cause, location and sentence except for the rank, in order."""
    folds: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        folds.setdefault(_fold_key(finding), []).append(finding)
    return [_fold(group) for group in folds.values()]


def _fold_key(finding: Finding) -> tuple[object, ...]:
    subject = finding.subject
    return (
        finding.code,
        finding.cause,
        finding.level,
        _without_rank(finding),
        subject.gpu,
        subject.link,
        subject.file,
        subject.line,
    )


def _without_rank(finding: Finding) -> str:
    message = one_line(finding.message)
    if finding.subject.rank is None:
        return message
    return re.sub(rf"\brank {finding.subject.rank}\b", "rank {}", message)


def _fold(group: list[Finding]) -> FoldedFinding:
    first = group[0]
    ranks = tuple(
        sorted({finding.subject.rank for finding in group if finding.subject.rank is not None})
    )
    if len(ranks) < 2:
        return FoldedFinding(first, ranks, one_line(first.message))
    subject, sentence = describe_ranks(ranks), _without_rank(first)
    if sentence.startswith("rank {} "):
        sentence, subject = sentence.removeprefix("rank {} "), f"each of {subject}"
    else:
        subject += ":"
    return FoldedFinding(first, ranks, f"{subject} {sentence.replace('rank {}', 'that rank')}")

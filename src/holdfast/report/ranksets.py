"""Sets of ranks, written so that a job of 16,384 fits on a line, and findings that differ in nothing but the rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from holdfast.findings import Finding
from holdfast.report.text import one_line

#: From this many ranks on, a set is followed by its size.
COUNTED_FROM = 9


class RankGroup(msgspec.Struct, frozen=True):
    """Ranks that all do the same: ``doing`` says what (``in all_reduce #31 of DDP``), ``place`` where (file:line)."""

    ranks: tuple[int, ...]
    doing: str
    place: str = ""


class Folded(msgspec.Struct, frozen=True):
    """Findings that differ in their rank alone: the first of them, all their ranks, and the sentence to show."""

    claim: Finding
    ranks: tuple[int, ...]
    sentence: str


def compress_ranks(ranks: Iterable[int], limit: int | None = None) -> str:
    """``0-1,3`` for ranks 0, 1 and 3; empty for none. Order and repetition do not matter.

    With ``limit`` at most so many pieces are written, and ``…`` for the rest.
    """
    ordered = sorted(set(ranks))
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])]
    pieces = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if limit is not None and len(pieces) > limit:
        pieces = [*pieces[:limit], "…"]
    return ",".join(pieces)


def rank_label(ranks: Iterable[int]) -> str:
    """``2``, ``0-1,3`` or ``0-1,3-1023 (1023)``: short enough for a column."""
    members = set(ranks)
    text = compress_ranks(members, limit=6)
    return f"{text} ({len(members)})" if len(members) >= COUNTED_FROM else text


def say_ranks(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0-1,3``, ``ranks 0-1,3-1023 (1023 ranks)``."""
    members = set(ranks)
    if len(members) == 1:
        return f"rank {compress_ranks(members)}"
    text = f"ranks {compress_ranks(members, limit=6)}"
    return f"{text} ({len(members)} ranks)" if len(members) >= COUNTED_FROM else text


def fold_findings(findings: Sequence[Finding]) -> list[Folded]:
    """Findings of one cause and place whose sentences differ in their own rank alone, as one line each, in order."""
    folds: dict[tuple[object, ...], list[Finding]] = {}
    for claim in findings:
        folds.setdefault(_sameness(claim), []).append(claim)
    return [_folded(same) for same in folds.values()]


def _sameness(claim: Finding) -> tuple[object, ...]:
    subject = claim.subject
    return (
        claim.code,
        claim.cause,
        claim.level,
        _without_rank(claim),
        subject.gpu,
        subject.link,
        subject.file,
        subject.line,
    )


def _without_rank(claim: Finding) -> str:
    message = one_line(claim.message)
    if claim.subject.rank is None:
        return message
    return re.sub(rf"\brank {claim.subject.rank}\b", "rank {}", message)


def _folded(same: list[Finding]) -> Folded:
    first = same[0]
    ranks = tuple(sorted({claim.subject.rank for claim in same if claim.subject.rank is not None}))
    if len(ranks) < 2:
        return Folded(first, ranks, one_line(first.message))
    whom, sentence = say_ranks(ranks), _without_rank(first)
    if sentence.startswith("rank {} "):
        sentence, whom = sentence.removeprefix("rank {} "), f"each of {whom}"
    else:
        whom += ":"
    return Folded(first, ranks, f"{whom} {sentence.replace('rank {}', 'that rank')}")

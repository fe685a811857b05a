"""Failures of no known cause: what unknown lines show of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.causes.process.unclassified_failure import UNCLASSIFIED_FAILURE
from holdfast.diagnose.log_rules.candidates import CauseCandidate, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex, is_later
from holdfast.diagnose.log_rules.rank_inference import find_rank
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.log_rules.unknown_lines import ChangedLine, find_changes, is_passed_over
from holdfast.diagnose.logs import LogLine

#: A root cause of these tiers has no reason; unknown lines may state it.
_WITHOUT_REASON = frozenset({Tier.CRASH, Tier.SILENCE})
MAX_LINES, MAX_ADDED_LINES = 3, 2
_MAX_QUOTED = 160


def explain_root(index: LogIndex, candidates: Sequence[CauseCandidate]) -> list[CauseCandidate]:
    """Return the candidates, with the lines that are new before a root without a reason.

    A root that is only a guess yields to them: it becomes the second.
    """
    root, *others = candidates
    if root.tier not in _WITHOUT_REASON:
        return list(candidates)
    changes = _errors_before(index, root.rank, root.lines)
    if not changes:
        return list(candidates)
    if not root.guess:
        facts = tuple(one.line.as_fact() for one in changes[-MAX_ADDED_LINES:])
        return [replace(root, facts=(*root.facts, *facts)), *others]
    lines = tuple(one.line for one in changes[-MAX_LINES:])
    who = f"rank {root.rank}" if root.rank is not None else "a process"
    message = (
        f"{who} ended for a reason that is not in the catalogue; new before its end: "
        f"{_quote(lines[-1])}"
    )
    cited = (*lines, *root.lines)
    unknown = replace(root, cause=UNCLASSIFIED_FAILURE.name, confidence=0.5, message=message)
    unknown = replace(unknown, lines=cited)
    return [unknown, *(one for one in candidates if one.cause != unknown.cause)]


def find_reported_failure(index: LogIndex) -> Iterator[CauseCandidate]:
    """Yield that a launcher or rank ended the job, where no line states a reason."""
    reports = [
        one
        for one in index.all("launcher-ends-ranks", "rank-aborts")
        if not _is_followed_by_life(index, one.line) and not index.is_after_end(one)
    ]
    if reports:
        rank = find_rank(index, reports)
        who = f"rank {rank}" if rank is not None else "a process"
        message = f"{who} ended the job, and the logs do not state why"
        yield CauseCandidate(
            UNCLASSIFIED_FAILURE.name,
            Tier.SILENCE,
            0.5,
            message,
            lines_of(reports[:1]),
            rank,
            guess=True,
        )


def find_error_at_end(index: LogIndex) -> Iterator[CauseCandidate]:
    """Yield errors that are new at the end of a log, where nothing shows that the job went on.

    After the end of the training, errors are of the tear-down.
    """
    if index.finishes:
        return
    errors = _errors_before(index, None)
    lines = [
        one.line
        for one in errors
        if not _is_followed_by_life(index, one.line) and not is_passed_over(index, one.line)
    ]
    if lines:
        shown = tuple(lines[-MAX_LINES:])
        message = f"new at the end, and of no cause in the catalogue: {_quote(shown[-1])}"
        rank = shown[-1].rank
        yield CauseCandidate(
            UNCLASSIFIED_FAILURE.name, Tier.SILENCE, 0.3, message, shown, rank, guess=True
        )


def _is_followed_by_life(index: LogIndex, line: LogLine) -> bool:
    ended = any(is_later(end.line, line) for end in index.all("finished", "tests-ok"))
    return ended or index.continues_after(line, steps=1)


def _errors_before(
    index: LogIndex, rank: int | None, cited: Sequence[LogLine] = ()
) -> list[ChangedLine]:
    """Return new lines that read like errors: of ``rank`` if there are any, or of one rank only."""
    places = {(line.source, line.number) for line in cited}
    severe = [
        one
        for one in find_changes(index)
        if one.severe and (one.line.source, one.line.number) not in places
    ]
    for chosen in (
        [one for one in severe if rank is not None and one.line.rank == rank],
        [one for one in severe if one.one_rank],
    ):
        if chosen:
            return chosen
    return severe


def _quote(line: LogLine) -> str:
    return line.text.strip()[:_MAX_QUOTED]

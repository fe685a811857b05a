"""What to do after a verdict. Pure: no clock, no files, no processes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.findings import Verdict


class OnHang(StrEnum):
    """What the user wants done about a hang (``--on-hang``)."""

    REPORT = "report"
    RESTART = "restart"
    STOP = "stop"


class Course(StrEnum):
    """What is done."""

    RESTART = "restart"
    STOP = "stop"
    REPORT = "report"


class Decision(msgspec.Struct, frozen=True):
    """What is done, and why in a few words."""

    course: Course
    reason: str


class Budget(msgspec.Struct, frozen=True):
    """Restarts so far, and the most there may be (``--max-restarts``)."""

    used: int
    most: int


def decide(
    verdict: Verdict | None, *, hang: bool, on_hang: OnHang, budget: Budget, history: Sequence[Verdict] = ()
) -> Decision:
    """Decide about a hang, or (``hang`` is False) about workers that died; None is a verdict that could not be had.

    A restart is tried again only as the budget allows; ``history`` holds the verdicts before this one, oldest first.
    """
    if hang and on_hang is OnHang.REPORT:
        return Decision(Course.REPORT, "none, as --on-hang report says: the job is left as it is")
    if hang and on_hang is OnHang.STOP:
        return Decision(Course.STOP, "stop, as --on-hang stop says")
    if budget.used >= budget.most:
        why = f"all {budget.most} restarts are used" if budget.most else "--max-restarts allows no restart"
        return Decision(Course.STOP, f"stop: {why}{_again(verdict, history)}")
    return Decision(Course.RESTART, f"restart {budget.used + 1} of {budget.most}{_again(verdict, history)}")


def _again(verdict: Verdict | None, history: Sequence[Verdict]) -> str:
    """Says so where the same thing happened before."""
    times = sum(_kind(past) == _kind(verdict) for past in history) if verdict is not None and verdict.root else 0
    return f"; the same happened {'once' if times == 1 else f'{times} times'} before" if times else ""


def _kind(verdict: Verdict | None) -> tuple[object, ...]:
    root = verdict.root if verdict is not None else None
    return (root.code, root.subject.rank, root.subject.file, root.subject.line) if root is not None else ()

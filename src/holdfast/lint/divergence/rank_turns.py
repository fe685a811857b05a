"""Recognize ranks that take turns: some enter a barrier before a section, the others after it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.conditions import Conditions, conjuncts_of
from holdfast.lint.abstract_domain.divergences import names_rank
from holdfast.lint.abstract_domain.effects import Branch
from holdfast.lint.abstract_domain.values import is_rank_only


def opposite_answers(branch: Branch) -> tuple[Conditions, Conditions] | None:
    """Return what holds on the ranks that answer a test of the rank with yes, and on the others.

    Of several conditions one names the rank; the others are equal on all ranks and hold: where one
    does not, all ranks answer no. None for other tests.
    """
    parts = conjuncts_of(branch.text)
    by_rank = [part for part in parts if len(parts) == 1 or names_rank(part[0])]
    if not (is_rank_only(branch.taint) and branch.taint and len(by_rank) == 1):
        return None
    [(test, holds)] = by_rank
    return parts, parts - {(test, holds)} | {(test, not holds)}


def drop_exclusive_branches(branch: Branch) -> Branch:
    """Return the branch without effects on the ``no`` side that exclude the ``yes`` side.

    ``if not together and first: … elif together: …``: if ``together`` holds, all ranks take the
    same side.
    """
    parts = conjuncts_of(branch.text)
    if len(parts) < 2:
        return branch
    denied = {(test, not holds) for test, holds in parts}
    remaining = tuple(
        effect
        for effect in branch.no
        if not (isinstance(effect, Branch) and _single_uniform_test(effect) in denied)
    )
    return (
        branch if len(remaining) == len(branch.no) else replace(branch, no=remaining, no_length=-1)
    )


def _single_uniform_test(branch: Branch) -> tuple[str, bool] | None:
    """Return the single condition of a uniform branch without ``else``."""
    parts = conjuncts_of(branch.text) if not branch.taint and not branch.no else frozenset()
    return next(iter(parts)) if len(parts) == 1 else None

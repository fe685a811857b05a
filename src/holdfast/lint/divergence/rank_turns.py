"""Recognize ranks that take turns: some enter a barrier before a section, the others after it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.conditions import conjuncts_of
from holdfast.lint.abstract_domain.effects import Branch, Effect, Try, collective_sequence
from holdfast.lint.abstract_domain.values import is_rank_only


def find_paired_branches(path: Sequence[Effect]) -> frozenset[int]:
    """Return ids of branch pairs: ranks that skip the first enter the same at the second."""
    branches = [
        branch for branch in _branches_of_level(path) if branch.taint and is_rank_only(branch.taint)
    ]
    paired: set[int] = set()
    for at, first in enumerate(branches):
        for second in branches[at + 1 :]:
            if (
                id(first) not in paired
                and id(second) not in paired
                and are_complementary(first, second)
            ):
                paired |= {id(first), id(second)}
    return frozenset(paired)


def are_complementary(first: Branch, second: Branch) -> bool:
    """Return True if two branches enter the same collectives on complementary sets of ranks."""
    entered = [_one_sided_sequence(branch) for branch in (first, second)]
    if entered[0] is None or entered[1] is None or entered[0][0] != entered[1][0]:
        return False
    first_conditions, second_conditions = (conjuncts_of(branch.text) for branch in (first, second))
    difference = first_conditions ^ second_conditions
    if first_conditions and entered[0][1] is entered[1][1]:
        return len(difference) == 2 and len({test for test, _ in difference}) == 1
    return bool(first_conditions) and not difference


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


def _branches_of_level(path: Sequence[Effect]) -> Iterator[Branch]:
    """Yield branches of one level, including those in ``try`` blocks and under uniform tests."""
    for effect in path:
        match effect:
            case Branch(taint=()):
                yield from _branches_of_level((*effect.yes, *effect.no))
            case Branch():
                yield effect
            case Try(body=body, final_body=last):
                yield from _branches_of_level((*body, *last))
            case _:
                pass


def _one_sided_sequence(branch: Branch) -> tuple[Hashable, bool] | None:
    """Return what one side enters if the other enters nothing, and which side it is."""
    yes = collective_sequence(branch.branch_body(branch.yes), rank_only=True)
    no = collective_sequence(branch.branch_body(branch.no), rank_only=True)
    if bool(yes) is bool(no):
        return None
    return (yes or no), bool(yes)

"""Recognize divergences that are not proved: the other ranks may enter the collective elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.lint.abstract_domain.conditions import (
    Conditions,
    conditions_of_side,
    conjuncts_of,
    decided_by,
)
from holdfast.lint.abstract_domain.divergences import HAS_PARTNER, MAY_EXIST, Divergence
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    FunctionCall,
    LoopEffect,
    Operation,
    Try,
    iter_events,
    iter_operations,
)
from holdfast.lint.divergence.futures import Goal, LoopHead

#: Maximum number of operations of a path to search, and of calls to enter.
_MAX_OPERATIONS, _MAX_DEPTH = 2000, 12
_RECEIVING = frozenset({
    "broadcast", "broadcast_object_list", "broadcast_object", "scatter", "scatter_object_list",
})  # fmt: skip
_ENDLESS_LOOP = re.compile(r"while (?:True|1)\b")
#: A test of whether there are several ranks; a flag of an object need not be set on one rank.
_SIZE_TEST = re.compile(
    r"world_size|initiali[sz]ed|is_available|num_process|n_gpu|num_gpus|nranks|replicas|group"
    r"|dist\w*\(|ddp\w*\(|parallel\w*\("
    r"|\b(?:args|cfg|conf|config|opts?|hparams|flags)\.\S*(?:dist|ddp|parallel)",
    re.IGNORECASE,
)
#: A test of whether something has been set up.
_EXISTENCE_TEST = re.compile(r"initiali[sz]ed|is (?:not )?None|\bnot in\b|hasattr|exists")
#: A test that leaves out the ranks that are no members of a group.
_IS_NO_MEMBER = re.compile(r"rank(?:\(\))? not in ", re.IGNORECASE)


def unproved_reason(divergence: Divergence, branch: Branch) -> str:
    """Return why a divergence of a test of the rank is not proved; empty if it is."""
    if (
        _may_have_partner(divergence, branch)
        or _is_worker_loop(divergence, branch)
        or _is_contradicted(divergence, branch)
    ):
        return HAS_PARTNER
    return MAY_EXIST if _is_created_lazily(divergence, branch) else ""


def _may_have_partner(divergence: Divergence, branch: Branch) -> bool:
    """Return True if both sides enter the collective, and a test or loop decides how often."""
    op = divergence.op
    if op is None or op.kind not in ("collective", "sharded"):
        return False
    sides = [list(_occurrences(side, op.name)) for side in (branch.yes, branch.no)]
    return all(sides) and any(depends for side in sides for depends in side)


def _is_worker_loop(divergence: Divergence, branch: Branch) -> bool:
    """Return True if the ranks of one side receive in an endless loop.

    They wait for requests, which the root sends from elsewhere: a server, a callback.
    """
    op = divergence.op
    return op is not None and any(
        _receives_endlessly(side, op, 0) for side in (branch.yes, branch.no)
    )


def depends_on_unknown(branch: Branch, op: Operation | None) -> bool:
    """Return True if a test of unknown answer in a called function decides about the collective.

    Such as the type of an argument; not a test of whether there are several ranks.
    """
    return op is not None and any(
        _is_under_unknown(side, op, called=False) for side in (branch.yes, branch.no)
    )


def _is_under_unknown(path: Sequence[Effect], op: Operation, *, called: bool) -> bool:
    for effect in path:
        inner: tuple[Effect, ...] = ()
        under = called
        match effect:
            case FunctionCall(callee=callee) if callee.sequence:
                inner, under = callee.path, True
            case Branch(yes=yes, no=no, text=text, taint=taint, known=known):
                decides = called and not taint and not known and not _is_size_test(text)
                if decides and _contains((*yes, *no), op):
                    return not (_contains(yes, op) and _contains(no, op))
                inner = (*yes, *no)
            case LoopEffect(body=body):
                inner = body
            case Try(body=body):
                inner = body
            case _:
                pass
        if inner and _contains(inner, op):
            return _is_under_unknown(inner, op, called=under)
    return False


def _is_size_test(text: str) -> bool:
    return all(_SIZE_TEST.search(part) for part, _ in conjuncts_of(text))


def _receives_endlessly(path: Sequence[Effect], op: Operation, depth: int) -> bool:
    """Return True if an endless loop begins with this collective, and receives something."""
    for effect in path:
        match effect:
            case LoopEffect(text=text, body=body) if _ENDLESS_LOOP.match(text):
                found = [each for each, _ in islice(iter_operations(body), _MAX_OPERATIONS)]
                if found[:1] == [op] and any(each.name in _RECEIVING for each in found):
                    return True
                continue
            case FunctionCall(callee=callee) if callee.sequence and depth < _MAX_DEPTH:
                inner: tuple[Effect, ...] = callee.path
            case Branch(yes=yes, no=no):
                inner = (*yes, *no)
            case Try(body=body):
                inner = body
            case _:
                continue
        if _receives_endlessly(inner, op, depth + 1):
            return True
    return False


def _is_contradicted(divergence: Divergence, branch: Branch) -> bool:
    """Return True if the opposite of the branch's test leads to the collective below it."""
    op = divergence.op
    sides = ((branch.yes, True), (branch.no, False))
    return op is not None and any(
        _contains(_excluded_side(each, conditions), op)
        for side, answer in sides
        for conditions in (conditions_of_side(branch.text, answer=answer),)
        for each in _iter_branches(side)
    )


def _excluded_side(branch: Branch, conditions: Conditions) -> Sequence[Effect]:
    answer = decided_by(conditions, branch.text)
    return () if answer is None else branch.no if answer else branch.yes


def _contains(path: Sequence[Effect], op: Operation) -> bool:
    return any(found is op for found, _ in islice(iter_operations(path), _MAX_OPERATIONS))


def _iter_branches(path: Sequence[Effect], depth: int = 0) -> Iterator[Branch]:
    """Yield the branches of a path and of what it calls, outer ones first."""
    for effect in path:
        match effect:
            case Branch(yes=yes, no=no):
                yield effect
                inner: tuple[Effect, ...] = (*yes, *no)
            case FunctionCall(callee=callee) if callee.sequence and depth < _MAX_DEPTH:
                inner = callee.path
            case LoopEffect(body=body, orelse=after):
                inner = (*body, *after)
            case Try(body=body):
                inner = body
            case _:
                continue
        yield from _iter_branches(inner, depth + 1)


def enters(path: Sequence[Effect], op: Operation) -> bool:
    """Return True if a path enters a collective of the same name, also in a handler."""
    return any(
        isinstance(event, Operation) and event.name == op.name for event in iter_events(path)
    )


def is_retry(divergence: Divergence, goal: Goal) -> bool:
    """Return True for a ``continue`` of an endless loop before its first collective.

    The rank only takes another turn, and the others wait in the collective until then.
    """
    if divergence.detail != "continue" or not isinstance(goal, LoopHead):
        return False
    loop = goal.loop
    return bool(_ENDLESS_LOOP.match(loop.text)) and all(
        chain[0].line > divergence.guard.line
        for _, chain in islice(iter_operations(loop.body), _MAX_OPERATIONS)
    )


def _is_created_lazily(divergence: Divergence, branch: Branch) -> bool:
    """Return True if tests of whether groups exist lead to the creation of a group."""
    op = divergence.op
    if op is None or op.kind != "creation":
        return False
    return _tests_existence(branch.text) or any(
        _tests_existence(each.text) and _contains((*each.yes, *each.no), op)
        for each in _iter_branches((*branch.yes, *branch.no))
    )


def _tests_existence(text: str) -> bool:
    return bool(_EXISTENCE_TEST.search(text)) and not _IS_NO_MEMBER.search(text)


def _occurrences(
    path: Sequence[Effect], name: str, *, depends: bool = False, depth: int = 0
) -> Iterator[bool]:
    """Yield for each operation of this name whether a test or loop decides if it is entered."""
    for effect in path:
        match effect:
            case Operation():
                if effect.name == name:
                    yield depends
            case FunctionCall(callee=callee) if callee.sequence and depth < _MAX_DEPTH:
                yield from _occurrences(callee.path, name, depends=depends, depth=depth + 1)
            case Branch(yes=yes, no=no):
                yield from _occurrences((*yes, *no), name, depends=True, depth=depth)
            case LoopEffect(body=body, orelse=after):
                yield from _occurrences((*body, *after), name, depends=True, depth=depth)
            case Try(body=body, final_body=last):
                yield from _occurrences((*body, *last), name, depends=depends, depth=depth)
            case _:
                pass

"""Recognize jobs that some of the started ranks form without waiting for the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.effects import (
    PROCESS_EXIT,
    Branch,
    Effect,
    FunctionCall,
    Marker,
    Operation,
    Try,
    final_exit,
)


def forms_new_job(branch: Branch) -> bool:
    """Return True if the ranks of one side form a job without those of the other.

    They set ``WORLD_SIZE`` after the others have left, or initialize a process group, which those
    do not, before they enter a collective.
    """
    bodies = [branch.branch_body(side) for side in (branch.yes, branch.no)]
    for side, body, other in (
        (branch.yes, bodies[0], bodies[1]),
        (branch.no, bodies[1], bodies[0]),
    ):
        end = final_exit(other)
        has_left = end is not None and end.keyword == PROCESS_EXIT
        if has_left and any(_sets_size(effect) for effect in _before_collectives(side)):
            return True
        if _initializes(body) and not _initializes(other):
            return True
    return False


def _sets_size(effect: Effect) -> bool:
    return (
        isinstance(effect, Marker) and effect.name == "variable" and effect.detail == "WORLD_SIZE"
    )


def _initializes(path: Sequence[Effect]) -> bool:
    """Return True if a process group is initialized before the first collective."""
    return any(
        isinstance(effect, Marker) and effect.name == "init" for effect in _before_collectives(path)
    )


def _before_collectives(path: Sequence[Effect]) -> Iterator[Effect]:
    """Yield the effects up to the first collective, those of called functions too."""
    for effect in path:
        match effect:
            case Operation():
                yield effect
                return
            case FunctionCall(callee=callee) if callee.tags & {"init", "variable"}:
                inner = callee.path
            case FunctionCall(callee=callee) if callee.sequence:
                return
            case Branch(yes=yes, no=no):
                inner = (*yes, *no)
            case Try(body=inner):
                pass
            case _:
                yield effect
                continue
        for each in _before_collectives(inner):
            yield each
            if isinstance(each, Operation):
                return

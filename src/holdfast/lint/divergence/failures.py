"""Find where a rank may raise while the others go on: explicit ``raise`` and calls that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    ExitEffect,
    FunctionCall,
    LoopEffect,
    Marker,
    Try,
    final_exit,
)
from holdfast.lint.abstract_domain.exceptions import catches
from holdfast.lint.divergence.futures import Block, Point

#: The marker of a call that may fail on one rank alone, with the names of its exceptions.
MAY_RAISE = "may raise"
#: Maximum call depth at which to look for exceptions.
_MAX_DEPTH = 6
#: Exceptions that only signal the end of an iteration.
_END_OF_ITERATION = frozenset({"StopIteration", "StopAsyncIteration"})


class Failure(msgspec.Struct, frozen=True, eq=False):
    """An exception on one rank: where it is raised, and where the other ranks go on.

    ``call_chain`` leads to it; ``goal`` is the point that ranks without the exception reach.
    """

    exception: str
    call_chain: tuple[SourceLine, ...]
    goal: Point


def iter_failures(
    block: Block,
    chain: tuple[SourceLine, ...] = (),
    goal: Point | None = None,
    *,
    in_loop: bool,
    looped: bool = False,
) -> Iterator[Failure]:
    """Yield the exceptions that leave a block on one rank alone.

    ``goal`` is where ranks continue that do not get here. A test of unknown taint counts as
    uniform, except in loops (``in_loop``: around the block, ``looped``: inside of it), where it may
    depend on each rank's data.
    """
    for at, effect in enumerate(block.path):
        match effect:
            case ExitEffect(keyword="raise"):
                is_end = effect.exception in _END_OF_ITERATION
                if goal is not None and not is_end:
                    yield Failure(effect.exception, (*chain, effect.location), goal)
            case Marker(name="may raise", detail=names, location=location):
                for name in names.split():
                    yield Failure(name, (*chain, location), goal or block.point(at + 1))
            case FunctionCall(location=location, callee=callee):
                if (callee.raises or MAY_RAISE in callee.tags) and len(chain) < _MAX_DEPTH:
                    called = block.called(effect, at)
                    yield from iter_failures(
                        called, (*chain, location), goal, in_loop=in_loop, looped=looped
                    )
            case Branch():
                for side, other in _varying_sides(effect, looped=looped, in_loop=in_loop):
                    yield from iter_failures(
                        block.nested(side, at),
                        chain,
                        goal if other is None else block.nested(other, at).point(0),
                        in_loop=in_loop,
                        looped=looped,
                    )
            case LoopEffect():
                yield from iter_failures(
                    block.loop_body(effect, at), chain, goal, in_loop=in_loop, looped=True
                )
            case Try():
                body = iter_failures(
                    block.guarded(effect, effect.body, at),
                    chain,
                    goal,
                    in_loop=in_loop,
                    looped=looped,
                )
                yield from _passing_failures(effect, body)
            case _:
                pass


def _varying_sides(
    branch: Branch, *, looped: bool, in_loop: bool
) -> Sequence[tuple[tuple[Effect, ...], tuple[Effect, ...] | None]]:
    """Return the sides of a branch, each with the other side if ranks may differ in the test."""
    may_vary = (looped or (in_loop and not branch.known)) and not branch.agreed
    if branch.taint or may_vary:
        return ((branch.yes, branch.no), (branch.no, branch.yes))
    return ((branch.yes, None), (branch.no, None))


def _passing_failures(block: Try, failures: Iterator[Failure]) -> Iterator[Failure]:
    """Yield the failures that no handler of a ``try`` catches, or that one raises again."""
    if (end := final_exit(block.final_body)) is not None and end.keyword != "raise":
        return
    for failure in failures:
        handled = next(
            (
                handled
                for _, caught, handled in block.handlers
                if catches(caught, failure.exception)
            ),
            None,
        )
        end = final_exit(handled) if handled is not None else None
        if handled is None:
            yield failure
        elif end is not None and end.keyword == "raise":
            yield replace(failure, exception=end.exception or failure.exception)

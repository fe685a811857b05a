"""Find where a path raises, which handler catches it, and which collectives it skips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    ExitEffect,
    FunctionCall,
    LoopEffect,
    Operation,
    final_exit,
    iter_operations,
)

#: Maximum call depth at which to look for exceptions.
_MAX_DEPTH = 6


def catches(handler_type: str, raised: str) -> bool:
    """Return True if a handler for ``handler_type`` catches the exception ``raised``."""
    names = {part.strip(" ()").rpartition(".")[2] for part in handler_type.split(",")}
    return not handler_type or bool(names & {"Exception", "BaseException", raised}) or not raised


def iter_raises(
    path: Sequence[Effect],
    chain: tuple[SourceLine, ...] = (),
    later: Operation | None = None,
    level: int = 0,
    *,
    looped: bool = False,
    in_loop: bool = False,
) -> Iterator[tuple[ExitEffect, tuple[SourceLine, ...], tuple[Operation, int] | None]]:
    """Yield each explicit ``raise``, its call chain, and the first skipped operation and its depth.

    A test of unknown taint counts as uniform, except in loops, where it may depend on each rank's
    data.
    """
    for at, effect in enumerate(path):
        next_op = next(
            (op for op, _ in iter_operations(path[at + 1 :]) if op.kind not in ("send", "recv")),
            None,
        )
        follows, depth = (next_op, len(chain)) if next_op is not None else (later, level)
        match effect:
            case ExitEffect(keyword="raise"):
                yield (
                    effect,
                    (*chain, effect.location),
                    (follows, depth) if follows is not None else None,
                )
            case FunctionCall(location=location, callee=callee):
                if callee.raises and len(chain) < _MAX_DEPTH:
                    yield from iter_raises(
                        callee.path,
                        (*chain, location),
                        follows,
                        depth,
                        looped=looped,
                        in_loop=in_loop,
                    )
            case Branch(taint=test, known=known, agreed=agreed, yes=yes, no=no):
                may_vary = (looped or (in_loop and not known)) and not agreed
                # otherwise all ranks raise, or none
                sides = ((yes, no), (no, yes)) if test or may_vary else ()
                for side, opposite in sides:
                    skipped = next(
                        (
                            op
                            for op, _ in iter_operations(opposite)
                            if op.kind not in ("send", "recv")
                        ),
                        None,
                    )
                    if final_exit(side) is not None and skipped is not None:
                        yield from iter_raises(
                            side, chain, skipped, len(chain), looped=looped, in_loop=in_loop
                        )
                    else:
                        yield from iter_raises(
                            side, chain, follows, depth, looped=looped, in_loop=in_loop
                        )
            case LoopEffect(body=body):
                yield from iter_raises(body, chain, follows, depth, looped=True, in_loop=in_loop)
            case _:
                pass

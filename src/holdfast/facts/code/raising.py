"""Exceptions: where a way raises, who catches it, and what is left out by then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.code.effects import Called, Effect, Exit, Fork, Loop, Op, Place, ends, operations

#: So many calls deep exceptions are looked for.
_DEEP = 6


def catches(what: str, raised: str) -> bool:
    """A handler's expression names the exception, or one that all are."""
    names = {each.strip(" ()").rpartition(".")[2] for each in what.split(",")}
    return not what or bool(names & {"Exception", "BaseException", raised}) or not raised


def raises(
    way: Sequence[Effect],
    chain: tuple[Place, ...] = (),
    later: Op | None = None,
    level: int = 0,
    *,
    looped: bool = False,
    in_loop: bool = False,
) -> Iterator[tuple[Exit, tuple[Place, ...], tuple[Op, int] | None]]:
    """Each explicit ``raise``, the calls that lead to it, and the first operation left out, with its level.

    What is not known is the same on all ranks, but for what is done again and again (``in_loop``), to each rank's data.
    """
    for at, effect in enumerate(way):
        next_op = next((op for op, _ in operations(way[at + 1 :]) if op.kind not in ("send", "recv")), None)
        follows, depth = (next_op, len(chain)) if next_op is not None else (later, level)
        match effect:
            case Exit(how="raise"):
                yield effect, (*chain, effect.place), (follows, depth) if follows is not None else None
            case Called(place=place, within=within):
                if within.raises and len(chain) < _DEEP:
                    yield from raises(within.way, (*chain, place), follows, depth, looped=looped, in_loop=in_loop)
            case Fork(test=test, known=known, agreed=agreed, yes=yes, no=no):
                own = (looped or (in_loop and not known)) and not agreed
                sides = ((yes, no), (no, yes)) if test or own else ()  # all raise, or none
                for side, opposite in sides:
                    skipped = next((op for op, _ in operations(opposite) if op.kind not in ("send", "recv")), None)
                    if ends(side) is not None and skipped is not None:
                        yield from raises(side, chain, skipped, len(chain), looped=looped, in_loop=in_loop)
                    else:
                        yield from raises(side, chain, follows, depth, looped=looped, in_loop=in_loop)
            case Loop(body=body):
                yield from raises(body, chain, follows, depth, looped=True, in_loop=in_loop)
            case _:
                pass

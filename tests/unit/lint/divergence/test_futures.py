"""Where ranks meet again: futures of points behind branches, loops, exits and ``finally``."""

import pytest

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import Branch, ExitEffect, LoopEffect, Operation, Try
from holdfast.lint.divergence.futures import FUNCTION_TARGETS, Block, Futures, iter_exits

HERE = SourceLine("train.py", 1, "train")
REDUCE, BARRIER = Operation("all_reduce", HERE), Operation("barrier", HERE)
RETURN, BREAK, CONTINUE, RAISE, EXIT = (
    ExitEffect(keyword, HERE) for keyword in ("return", "break", "continue", "raise", "exit")
)


def branch(yes, no=(), text="if cfg.dry"):
    return Branch(HERE, text, (), known=True, yes=tuple(yes), no=tuple(no))


def loop(*body):
    return LoopEffect(HERE, "for batch in loader", (), (), body)


def meet(one, other, *after):
    """Return True if ranks that take two paths in front of ``after`` meet again."""
    block = Block((branch(one, other), *after), FUNCTION_TARGETS)
    futures = Futures(rank_only=False)
    return futures.can_meet(*(block.nested(tuple(side), 0).point(0) for side in (one, other)))


@pytest.mark.parametrize(
    ("one", "other", "after"),
    [
        ((), (), (REDUCE,)),
        ((REDUCE, RETURN), (), (REDUCE,)),
        ((RAISE,), (BARRIER,), (REDUCE,)),
        ((branch((RAISE,)),), (), (REDUCE,)),
        ((branch((REDUCE,)),), (branch((REDUCE,)),), ()),
        ((branch((REDUCE,), (REDUCE,)),), (REDUCE,), ()),
        ((loop(REDUCE),), (loop(REDUCE),), ()),
        ((loop(branch((BREAK,))),), (), (REDUCE,)),
        ((Try(HERE, (RETURN,), (), (REDUCE,)),), (REDUCE,), ()),
        ((RETURN,), (), ()),
    ],
)
def test_ranks_meet_again(one, other, after):
    assert meet(one, other, *after)
    assert meet(other, one, *after)


@pytest.mark.parametrize(
    ("one", "other", "after"),
    [
        ((RETURN,), (), (REDUCE,)),
        ((branch((RETURN,)),), (), (REDUCE,)),
        ((branch((RETURN,)),), (), (branch((REDUCE,), text="if cfg.sync"),)),
        ((loop(branch((RETURN,))),), (), (REDUCE,)),
        ((loop(REDUCE, branch((BREAK,))),), (loop(REDUCE),), ()),
        ((Try(HERE, (RETURN,), (), ()),), (), (REDUCE,)),
        ((REDUCE, BARRIER), (BARRIER, REDUCE), ()),
        ((EXIT,), (), (REDUCE,)),
    ],
)
def test_ranks_do_not_meet(one, other, after):
    assert not meet(one, other, *after)
    assert not meet(other, one, *after)


def test_exits_lead_out_of_their_own_loop_only():
    inner = loop(branch((BREAK,)), branch((CONTINUE,)), branch((RETURN,)))
    block = Block((loop(inner, branch((BREAK,))), REDUCE), FUNCTION_TARGETS)
    assert [end for end, *_ in iter_exits(block)] == [RETURN]
    body = block.loop_body((inner, branch((BREAK,))), 0)
    assert [end for end, *_ in iter_exits(body)] == [RETURN, BREAK]

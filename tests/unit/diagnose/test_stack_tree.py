"""Prefix tree of stacks: shared frames occur once, every rank ends once, threads stay separate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.diagnose.stacks.stack_tree import MAX_FORKS, merge_stacks

MAIN = SourceLine("/job/train.py", 90, "main")
STEP = SourceLine("/job/train.py", 41, "train_step")
SLEEP = SourceLine("/job/data.py", 7, "tokenize")
REDUCE = SourceLine("/x/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce")


def stack(*outermost_first: SourceLine, thread: str = "MainThread") -> ThreadStack:
    return ThreadStack(tuple(reversed(outermost_first)), thread)


def leaves(branches):
    """Yield (frames, outermost first; ranks that end there) of every branch."""
    for branch in branches:
        frames = tuple(frame.text for frame in branch.frames)
        below = [rank for each in branch.branches for rank in each.ranks]
        ends = [rank for rank in branch.ranks if rank not in below]
        if ends:
            yield frames, tuple(ends)
        yield from ((frames + rest, ranks) for rest, ranks in leaves(branch.branches))


def test_outlier_has_its_own_branch():
    waiting = stack(MAIN, STEP, REDUCE)
    (tree,) = merge_stacks({0: [waiting], 1: [waiting], 2: [stack(MAIN, SLEEP)], 3: [waiting]})
    (trunk,) = tree.branches
    assert [frame.text for frame in trunk.frames] == ["train.py:90 main"]
    assert [branch.ranks for branch in trunk.branches] == [(0, 1, 3), (2,)]
    assert [frame.own for frame in trunk.branches[0].frames] == [True, False]


def test_stack_that_is_a_prefix_of_another_is_kept():
    (tree,) = merge_stacks({0: [stack(MAIN)], 1: [stack(MAIN, STEP)]}, changing=[0])
    assert dict(leaves(tree.branches)) == {
        ("train.py:90 main",): (0,),
        ("train.py:90 main", "train.py:41 train_step"): (1,),
    }
    assert tree.branches[0].changing == (0,)


def test_threads_are_merged_by_name_main_thread_first():
    watch, unnamed = stack(STEP, thread="Watchdog"), stack(SLEEP, thread="thread 3")
    trees = merge_stacks({rank: [unnamed, watch, stack(MAIN)] for rank in range(3)})
    assert [tree.thread for tree in trees] == ["MainThread", "Watchdog", "other threads"]
    assert [tree.branches[0].ranks for tree in trees] == [(0, 1, 2)] * 3


def test_forks_beyond_the_limit_are_flat_and_keep_all_ranks():
    places = [SourceLine("/job/deep.py", line, "f") for line in range(1, 301)]
    ranks = {rank: [stack(*places[: rank + 1])] for rank in range(300)}
    (tree,) = merge_stacks(ranks)
    assert tree.branches[0].ranks == tuple(range(300))
    depth, level = 0, tree.branches
    while level:
        depth, level = depth + 1, max((branch.branches for branch in level), key=len)
    assert depth <= MAX_FORKS + 2


@given(
    st.dictionaries(
        st.integers(0, 40), st.lists(st.integers(1, 3), min_size=1, max_size=6), max_size=12
    )
)
def test_every_rank_ends_once_at_its_stack(ways):
    stacks = {
        rank: [stack(*(SourceLine("/job/a.py", line, "f") for line in way))]
        for rank, way in ways.items()
    }
    found = {
        rank: way
        for tree in merge_stacks(stacks)
        for way, ranks in leaves(tree.branches)
        for rank in ranks
    }
    assert found == {rank: tuple(f"a.py:{line} f" for line in way) for rank, way in ways.items()}

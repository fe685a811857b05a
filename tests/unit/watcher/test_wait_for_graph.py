"""The wait-for graph: roots, cycles, partners of sends, and its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.rank_table import ProcessGroupInfo
from holdfast.watcher.rules import wait_for_graph
from tests.unit.watcher.rank_tables import call, history, row, world


def test_the_rank_that_did_not_enter_is_the_root() -> None:
    ranks = [row(rank, *history(30), call(31)) for rank in (0, 1, 3)] + [row(2, *history(30))]
    graph = wait_for_graph.build_wait_graph(ranks, world(4), 4)
    (wait,) = graph.waits
    assert wait.waiters == (0, 1, 3)
    assert wait.awaited == (2,)
    assert graph.roots == (2,)
    assert graph.cycle == ()


def test_chains_end_at_the_last_rank() -> None:
    groups = world(4) | {"a": ProcessGroupInfo("a", (0, 1)), "b": ProcessGroupInfo("b", (1, 2))}
    ranks = [row(0, call(1, group="a")), row(1, call(1, group="b")), row(2), row(3, call(1))]
    graph = wait_for_graph.build_wait_graph(ranks, groups, 4)
    assert graph.roots == (2,)
    assert graph.cycle == ()


def test_two_groups_in_opposite_order_are_a_cycle() -> None:
    groups = {"a": ProcessGroupInfo("a", (0, 1)), "b": ProcessGroupInfo("b", (0, 1))}
    graph = wait_for_graph.build_wait_graph(
        [row(0, call(1, group="a")), row(1, call(1, group="b"))], groups, 2
    )
    assert graph.roots == ()
    assert sorted(rank for rank, _ in graph.cycle) == [0, 1]


def test_a_cycle_beside_an_explained_chain_is_still_found() -> None:
    groups = {
        "a": ProcessGroupInfo("a", (0, 1)),
        "b": ProcessGroupInfo("b", (0, 1)),
        "c": ProcessGroupInfo("c", (2, 3)),
    }
    ranks = [
        row(0, call(1, group="a")),
        row(1, call(1, group="b")),
        row(2, call(1, group="c")),
        row(3),
    ]
    graph = wait_for_graph.build_wait_graph(ranks, groups, 4)
    assert graph.roots == (3,)
    assert sorted(rank for rank, _ in graph.cycle) == [0, 1]


def test_a_send_waits_for_a_receive_that_was_not_posted() -> None:
    graph = wait_for_graph.build_wait_graph(
        [row(0, call(1, "send", peer=1, tag=7)), row(1)], world(2), 2
    )
    assert graph.roots == (1,)
    met = wait_for_graph.build_wait_graph(
        [row(0, call(1, "send", peer=1, tag=7)), row(1, call(1, "recv", peer=0, tag=7))],
        world(2),
        2,
    )
    assert met.roots == ()
    wrong = row(1, call(1, "recv", peer=0, tag=8))
    other_tag = wait_for_graph.build_wait_graph(
        [row(0, call(1, "send", peer=1, tag=7)), wrong], world(2), 2
    )
    assert sorted(rank for rank, _ in other_tag.cycle) == [0, 1]


def test_ranks_inside_one_call_wait_for_no_rank() -> None:
    graph = wait_for_graph.build_wait_graph([row(rank, call(5)) for rank in range(4)], world(4), 4)
    assert graph.roots == ()
    assert graph.cycle == ()
    assert graph.waits[0].awaited == ()


def test_unrecorded_members_are_the_ranks_inside() -> None:
    ranks = [row(0, call(2, group="x")), row(1, call(1, group="x", done=True)), row(2)]
    assert wait_for_graph.build_wait_graph(ranks, {}, 3).roots == (1,)


def test_new_group_waits_for_the_whole_world() -> None:
    graph = wait_for_graph.build_wait_graph(
        [row(0, call(1, "new_group", group="new_group")), row(1), row(2)], {}, 3
    )
    assert graph.roots == (1, 2)


@given(st.integers(2, 40), st.data())
def test_only_missing_ranks_are_roots(size: int, data: st.DataObject) -> None:
    missing = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    ranks = [
        row(rank, *history(3), *([] if rank in missing else [call(4)])) for rank in range(size)
    ]
    graph = wait_for_graph.build_wait_graph(ranks, world(size), size)
    assert set(graph.roots) == missing
    assert graph.cycle == ()


@given(st.integers(2, 12))
def test_a_ring_of_pair_groups_is_one_cycle(size: int) -> None:
    groups = {
        str(i): ProcessGroupInfo(str(i), tuple(sorted((i, (i + 1) % size)))) for i in range(size)
    }
    graph = wait_for_graph.build_wait_graph(
        [row(i, call(1, group=str(i))) for i in range(size)], groups, size
    )
    if size == 2:  # both pairs are the same two ranks
        assert len(graph.cycle) == 2
    assert sorted(rank for rank, _ in graph.cycle) == list(range(size))


def uncertain(sequence: int) -> object:
    """Return a call of a backend that does not report completion."""
    return replace(call(sequence), certain=False)


def test_without_completion_the_rank_that_is_behind_is_still_the_root() -> None:
    """On NCCL the hosts run ahead; call #31 cannot complete before rank 2 enters it."""
    ahead = [
        row(rank, *history(30), *(uncertain(number) for number in (31, 32, 33)))
        for rank in (0, 1, 3)
    ]  # type: ignore[arg-type]
    graph = wait_for_graph.build_wait_graph(
        [*ahead, row(2, *history(29), uncertain(30))], world(4), 4
    )  # type: ignore[arg-type]
    assert graph.roots == (2,)
    assert [wait.operation.sequence for wait in graph.waits] == [31]


def test_without_completion_equal_counters_give_no_wait() -> None:
    graph = wait_for_graph.build_wait_graph(
        [row(rank, *history(30), uncertain(31)) for rank in range(4)], world(4), 4
    )  # type: ignore[arg-type]
    assert graph.waits == ()

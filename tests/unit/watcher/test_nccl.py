"""Verdicts for NCCL with the completion from flight-recorder dumps.

The first open call is certain, those enqueued after it are not (see
watcher/flight_recorder/completion.py).
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.findings import Verdict
from holdfast.core.rank_table import RankState, RecordedCall
from holdfast.watcher.rules import hang, wait_for_graph
from tests.unit.watcher.rank_tables import LOADER, call, history, row, world


def queued(first: int, last: int, name: str = "all_reduce") -> tuple[RecordedCall, ...]:
    """Return the enqueued calls ``first`` to ``last``; the device is in the first."""
    calls = (call(number, name) for number in range(first, last + 1))
    return tuple(replace(each, certain=each.sequence == first) for each in calls)


def uncertain(*calls: RecordedCall) -> tuple[RecordedCall, ...]:
    """Return the same calls without a dump."""
    return tuple(replace(each, certain=False) for each in calls)


def judged(*ranks: RankState) -> Verdict:
    """Return the verdict for these ranks of the default group."""
    return hang.judge_hang(ranks, world(len(ranks)), world_size=len(ranks))


def test_an_incomplete_call_of_all_ranks_is_reported() -> None:
    verdict = judged(*(row(rank, *history(30), *queued(31, 31)) for rank in range(4)))
    assert verdict.root is not None
    assert (verdict.root.cause, verdict.root.subject.rank) == ("collective-incomplete", None)
    assert "all_reduce #31" in verdict.root.message


def test_without_a_dump_there_is_no_verdict() -> None:
    assert (
        judged(*(row(rank, *history(30), *uncertain(call(31))) for rank in range(4))).root is None
    )


def test_a_dump_of_one_rank_is_enough() -> None:
    """The others hold the GIL or run an older torch."""
    ranks = [row(rank, *history(30), *uncertain(call(31))) for rank in range(3)]
    verdict = judged(*ranks, row(3, *history(30), *queued(31, 31)))
    assert verdict.root is not None
    assert verdict.root.cause == "collective-incomplete"


def test_a_host_that_ran_ahead_is_no_root_and_waits_for_no_rank() -> None:
    """Rank 0 enqueued #32 to #34 after the stuck call; the others need not have entered them."""
    ranks = [
        row(0, *history(30), *queued(31, 34)),
        *(row(rank, *history(30), *queued(31, 31)) for rank in (1, 2, 3)),
    ]
    graph = wait_for_graph.build_wait_graph(ranks, world(4), 4)
    assert [(wait.operation.sequence, wait.waiters, wait.awaited) for wait in graph.waits] == [
        (31, (0, 1, 2, 3), ())
    ]
    verdict = judged(*ranks)
    assert verdict.root is not None
    assert (verdict.root.cause, verdict.root.subject.rank) == ("collective-incomplete", None)
    assert "#31" in verdict.root.message


def test_the_rank_that_is_behind_is_the_root_of_the_first_call_only() -> None:
    ahead = [row(rank, *history(30), *queued(31, 33)) for rank in (0, 1, 3)]
    ranks = [*ahead, row(2, *history(30), at=LOADER)]
    assert [
        (wait.operation.sequence, wait.awaited)
        for wait in wait_for_graph.build_wait_graph(ranks, world(4), 4).waits
    ] == [(31, (2,))]
    verdict = judged(*ranks)
    assert verdict.root is not None
    assert verdict.root.subject.rank == 2


def test_a_divergence_is_found_where_the_device_waits() -> None:
    """NCCL hangs on different calls, because it does not compare them."""
    ranks = [row(rank, *history(30), *queued(31, 31)) for rank in (0, 1, 3)]
    odd = row(2, *history(30), *queued(31, 31, "broadcast"))
    verdict = judged(*ranks, odd)
    assert verdict.root is not None
    assert "mismatch" in verdict.root.cause
    assert verdict.root.subject.rank == 2


def test_completed_calls_do_not_point_to_the_network() -> None:
    """If no call is in flight, no rank waits, and blocked ranks are named separately."""
    verdict = judged(*(row(rank, *history(31), at=LOADER) for rank in range(2)))
    assert verdict.root is None or verdict.root.cause != "collective-incomplete"

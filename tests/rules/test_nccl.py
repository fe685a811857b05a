"""Calls on NCCL, of which the flight recorder told on which the device is: the verdicts that become possible by it.

The first call that is not over is certain, those enqueued behind it are not (facts/completion.py).
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.facts.ranks import Operation, RankState
from holdfast.findings import Verdict
from holdfast.rules import hang, waits
from tests.rules.tables import LOADER, call, history, row, world


def queued(first: int, last: int, name: str = "all_reduce") -> tuple[Operation, ...]:
    """Calls ``first`` to ``last``, enqueued: the device is in the first."""
    calls = (call(number, name) for number in range(first, last + 1))
    return tuple(replace(each, certain=each.sequence == first) for each in calls)


def untold(*calls: Operation) -> tuple[Operation, ...]:
    """The same calls where no dump came."""
    return tuple(replace(each, certain=False) for each in calls)


def judged(*ranks: RankState) -> Verdict:
    """The verdict over these ranks of the default group."""
    return hang.judge(ranks, world(len(ranks)), world_size=len(ranks))


def test_all_ranks_in_a_call_that_does_not_complete_blame_the_transport() -> None:
    verdict = judged(*(row(rank, *history(30), *queued(31, 31)) for rank in range(4)))
    assert verdict.root is not None
    assert (verdict.root.cause, verdict.root.subject.rank) == ("network-fabric-fault", None)
    assert "all_reduce #31" in verdict.root.message


def test_without_a_dump_there_is_no_verdict() -> None:
    assert judged(*(row(rank, *history(30), *untold(call(31))) for rank in range(4))).root is None


def test_a_dump_of_one_rank_is_enough() -> None:
    """The others hold the GIL, or run an older torch."""
    ranks = [row(rank, *history(30), *untold(call(31))) for rank in range(3)]
    verdict = judged(*ranks, row(3, *history(30), *queued(31, 31)))
    assert verdict.root is not None
    assert verdict.root.cause == "network-fabric-fault"


def test_a_host_that_ran_ahead_is_not_blamed_and_blames_nobody() -> None:
    """Rank 0 enqueued 32 to 34 behind the call that is stuck; the others have not come to them, and need not."""
    ranks = [row(0, *history(30), *queued(31, 34)), *(row(rank, *history(30), *queued(31, 31)) for rank in (1, 2, 3))]
    graph = waits.build(ranks, world(4), 4)
    assert [(wait.operation.sequence, wait.waiters, wait.awaited) for wait in graph.waits] == [(31, (0, 1, 2, 3), ())]
    verdict = judged(*ranks)
    assert verdict.root is not None
    assert (verdict.root.cause, verdict.root.subject.rank) == ("network-fabric-fault", None)
    assert "#31" in verdict.root.message


def test_the_rank_that_is_behind_is_the_root_of_the_first_call_alone() -> None:
    ahead = [row(rank, *history(30), *queued(31, 33)) for rank in (0, 1, 3)]
    ranks = [*ahead, row(2, *history(30), at=LOADER)]
    assert [(wait.operation.sequence, wait.awaited) for wait in waits.build(ranks, world(4), 4).waits] == [(31, (2,))]
    verdict = judged(*ranks)
    assert verdict.root is not None
    assert verdict.root.subject.rank == 2


def test_ranks_that_parted_are_seen_where_the_device_waits() -> None:
    """NCCL does not compare calls: it hangs. With a dump the hang is known to be one, and the calls differ."""
    ranks = [row(rank, *history(30), *queued(31, 31)) for rank in (0, 1, 3)]
    odd = row(2, *history(30), *queued(31, 31, "broadcast"))
    verdict = judged(*ranks, odd)
    assert verdict.root is not None
    assert "mismatch" in verdict.root.cause
    assert verdict.root.subject.rank == 2


def test_where_all_is_over_nothing_is_said_of_the_transport() -> None:
    """The dump said that no call is in flight: nobody waits, and what stands still stands by itself."""
    verdict = judged(*(row(rank, *history(31), at=LOADER) for rank in range(2)))
    assert verdict.root is None or verdict.root.cause != "network-fabric-fault"

"""One rank, or one host, that the others wait for all the time; and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.facts.ranks import Life, RankState, Slice
from holdfast.facts.waiting import SLICES
from holdfast.rules import straggler


def ranks(
    *waits: float | Callable[[int], float], hosts: str = "abcd", calls: int = 5, begin: int = 100
) -> list[RankState]:
    """A rank for each way of waiting, with a window of slices."""
    return [
        RankState(rank=rank, host=hosts[rank], life=Life.RUNNING, waits=tuple(
            Slice(begin + at, wait(at) if callable(wait) else wait, calls) for at in range(SLICES)))
        for rank, wait in enumerate(waits)
    ]  # fmt: skip


def named(table: list[RankState]) -> int | None:
    verdict = straggler.judge(table, len(table))
    return verdict.root.subject.rank if verdict and verdict.root else None


def test_the_rank_that_hardly_waits_is_the_one_waited_for() -> None:
    table = ranks(0.6, 0.02, 0.55)
    verdict = straggler.judge(table, 3)
    assert verdict is not None
    assert verdict.root is not None
    assert (verdict.root.cause, verdict.root.subject.rank, verdict.root.subject.host) == ("straggler", 1, "b")
    assert verdict.root.message == "rank 1 on b is slower than the others, which wait 53% of the time for it"
    assert [fact.rank for fact in verdict.root.evidence] == [1, 2, 0]


def test_a_host_all_of_whose_ranks_are_slow_is_named() -> None:
    verdict = straggler.judge(ranks(0.6, 0.6, 0.05, 0.04, hosts="aabb"), 4)
    assert verdict is not None
    assert verdict.root is not None
    assert (verdict.root.subject.host, verdict.root.subject.rank) == ("b", 3)
    assert verdict.root.message.startswith("the ranks on b are slower than all others")


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(ranks(0.1, 0.1, 0.12), id="an even job"),
        pytest.param(ranks(0.05, 0.3, 0.3), id="a little slower"),
        pytest.param(ranks(0.05, 0.06, 0.6, hosts="aaa"), id="two hide each other"),
        pytest.param(ranks(lambda at: 0.02 if at < 6 else 0.9, lambda at: 0.9 if at < 6 else 0.02, 0.9), id="by turns"),
        pytest.param(ranks(0.01, lambda at: 1.0 if at in (3, 4, 5, 6) else 0.02), id="one long stall"),
        pytest.param(ranks(lambda at: 0.3 if at % 4 == 0 else 0.0, lambda at: 0.9 if at % 4 else 0.0), id="unsteady"),
        pytest.param(ranks(0.6, 0.02, calls=0), id="too few calls"),
        pytest.param([*ranks(0.6, 0.6), *ranks(0.0, 0.0, 0.0, calls=9)[2:]], id="other calls than the others"),
        pytest.param([*ranks(0.6), *ranks(0.0, 0.0, begin=900)[1:]], id="clocks that are far apart"),
        pytest.param([*ranks(0.6, 0.02), RankState(rank=2)], id="a rank that nobody measured"),
        pytest.param(ranks(0.02), id="alone"),
        pytest.param([], id="nobody"),
    ],
)
def test_nobody_is_named(table: list[RankState]) -> None:
    assert named(table) is None


def test_ranks_of_a_node_that_was_not_heard_of_are_not_compared() -> None:
    assert straggler.judge(ranks(0.6, 0.02), 3) is None

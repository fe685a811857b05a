"""A rank or host that the others wait for in nearly every slice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core.rank_table import ProcessState, RankState, WaitSlice
from holdfast.watcher.rules import straggler
from holdfast.watcher.wait_times import SLICES


def ranks(
    *waits: float | Callable[[int], float], hosts: str = "abcd", calls: int = 5, begin: int = 100
) -> list[RankState]:
    """Return a rank per sequence of wait fractions."""
    return [
        RankState(
            rank=rank,
            host=hosts[rank],
            life=ProcessState.RUNNING,
            waits=tuple(
                WaitSlice(begin + at, wait(at) if callable(wait) else wait, calls)
                for at in range(SLICES)
            ),
        )
        for rank, wait in enumerate(waits)
    ]


def named(table: list[RankState]) -> int | None:
    verdict = straggler.judge(table, len(table))
    return verdict.root.subject.rank if verdict and verdict.root else None


def test_the_rank_that_waits_least_is_named() -> None:
    table = ranks(0.6, 0.02, 0.55)
    verdict = straggler.judge(table, 3)
    assert verdict is not None
    assert verdict.root is not None
    assert (verdict.root.cause, verdict.root.subject.rank, verdict.root.subject.host) == (
        "straggler",
        1,
        "b",
    )
    assert (
        verdict.root.message
        == "rank 1 on b is slower than the others, which wait 53% of the time for it"
    )
    assert [fact.rank for fact in verdict.root.evidence] == [1, 2, 0, None]


def test_a_host_with_only_slow_ranks_is_named() -> None:
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
        pytest.param(
            ranks(lambda at: 0.02 if at < 6 else 0.9, lambda at: 0.9 if at < 6 else 0.02, 0.9),
            id="by turns",
        ),
        pytest.param(
            ranks(0.01, lambda at: 1.0 if at in (3, 4, 5, 6) else 0.02), id="one long stall"
        ),
        pytest.param(
            ranks(lambda at: 0.3 if at % 4 == 0 else 0.0, lambda at: 0.9 if at % 4 else 0.0),
            id="unsteady",
        ),
        pytest.param(ranks(0.6, 0.02, calls=0), id="too few calls"),
        pytest.param(
            [*ranks(0.6, 0.6), *ranks(0.0, 0.0, 0.0, calls=9)[2:]], id="other calls than the others"
        ),
        pytest.param(
            [*ranks(0.6), *ranks(0.0, 0.0, begin=900)[1:]], id="clocks that are far apart"
        ),
        pytest.param([*ranks(0.6, 0.02), RankState(rank=2)], id="an unmeasured rank"),
        pytest.param(ranks(0.02), id="alone"),
        pytest.param([], id="no ranks"),
    ],
)
def test_no_rank_is_named(table: list[RankState]) -> None:
    assert named(table) is None


def test_jobs_with_missing_ranks_are_not_compared() -> None:
    assert straggler.judge(ranks(0.6, 0.02), 3) is None


def test_one_long_action_is_no_slow_rank() -> None:
    """80 s of validation on rank 0: calls before it, none in it."""

    def stalled(*waits: float) -> list[RankState]:
        table = ranks(*waits)
        return [
            replace(
                state,
                waits=tuple(
                    replace(each, waited=0.05, calls=200) if at < 3 else replace(each, calls=0)
                    for at, each in enumerate(state.waits)
                ),
            )
            for state in table
        ]

    assert named(stalled(0.0, 1.0, 1.0)) is None


def test_a_rank_whose_steps_are_longer_than_a_slice_is_named() -> None:
    table = [
        replace(
            state,
            waits=tuple(replace(each, calls=2 * (at % 2)) for at, each in enumerate(state.waits)),
        )
        for state in ranks(0.6, 0.02, 0.55, calls=4)
    ]
    assert named(table) == 1


def test_a_straggler_on_the_only_host_does_not_cost_the_host() -> None:
    verdict = straggler.judge(ranks(0.6, 0.02, 0.55, hosts="aaa"), 3)
    assert verdict is not None
    assert verdict.root is not None
    assert not any("pool" in remedy.text for remedy in verdict.root.remedies)

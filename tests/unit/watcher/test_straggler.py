"""A rank or host that the others wait for in nearly every slice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.causes.gpu.gpu_throttled import GPU_THROTTLED
from holdfast.core.findings import Finding, Subject, make_finding
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


def many(slow: dict[int, float], device: Callable[[int], str] = lambda _: "") -> list[RankState]:
    """Return 16 ranks on 4 hosts that wait half of the time, except those in ``slow``."""
    return [
        replace(
            state,
            rank=rank,
            host=f"n{rank // 4}",
            device=device(rank),
            waits=tuple(
                replace(each, waited=slow.get(rank, 0.5) + 0.01 * ((rank + at) % 3))
                for at, each in enumerate(state.waits)
            ),
        )
        for rank, state in enumerate(ranks(0.5, hosts="a") * 16)
    ]


def message(table: list[RankState], health: tuple[Finding, ...] = ()) -> str | None:
    verdict = straggler.judge(table, len(table), health)
    return verdict.root.message if verdict is not None and verdict.root is not None else None


def test_of_many_ranks_a_smaller_difference_is_enough() -> None:
    assert message(many({5: 0.3})) == (
        "rank 5 on n1 is slower than the others, which wait 20% of the time for it"
    )
    assert message(many({5: 0.4})) is None


def test_two_slow_ranks_on_two_hosts_do_not_hide_each_other() -> None:
    assert message(many({5: 0.1, 11: 0.1})) == (
        "ranks 5,11 are slower than the others, which wait 40% of the time for them; the slowest "
        "is rank 5 on n1"
    )


def test_all_ranks_of_one_of_many_hosts_are_that_host() -> None:
    found = message(many(dict.fromkeys(range(8, 12), 0.1)))
    assert found is not None
    assert found.startswith("the ranks on n2 are slower than all others")


def test_two_slow_hosts_are_both_named() -> None:
    hosts = {2: 0.1, 3: 0.1, 8: 0.1, 9: 0.1}
    table = [replace(state, host=f"n{state.rank // 2}") for state in many(hosts)]
    assert str(message(table)).startswith("the ranks on n1 and n4 are slower than all others")


def kinds(rank: int) -> str:
    return "fast" if rank < 8 else "slower"


def test_a_slower_kind_of_gpu_is_not_accused() -> None:
    slower = dict.fromkeys(range(8, 16), 0.05)
    assert message(many(slower)) is None
    assert message(many(slower, kinds)) is None
    assert message(many(dict.fromkeys(range(12, 16), 0.05), lambda at: f"{at < 12}")) is None
    assert message(many({3: 0.05}, lambda at: f"{at == 3}")) is None  # nothing to compare with


def test_a_slow_rank_of_the_slower_kind_is_named() -> None:
    table = many({**dict.fromkeys(range(8, 16), 0.3), 12: 0.05}, kinds)
    assert message(table) == (
        "rank 12 on n3 is slower than the others, which wait 25% of the time for it"
    )
    verdict = straggler.judge(table, 16)
    assert verdict is not None
    assert verdict.root is not None
    assert verdict.root.evidence[-1].text == "the wait costs 3.8 GPU-hours per hour"


def test_a_slow_rank_of_the_faster_kind_that_costs_nothing_is_not_named() -> None:
    assert message(many({**dict.fromkeys(range(8, 16), 0.05), 3: 0.2}, kinds)) is None


def test_reasons_are_named_where_the_rank_differs() -> None:
    table = many({5: 0.1})
    table[5] = replace(table[5], loader_share=0.35, collector_share=0.02)
    assert str(message(table)).endswith(
        "for it; it waits 35% of the time for its data loader, the others 0%"
    )
    alike = [replace(state, loader_share=0.3) for state in table]
    assert str(message(alike)).endswith("of the time for it")
    table[5] = replace(table[5], loader_share=0.0, collector_share=0.2)
    assert str(message(table)).endswith("Python collects garbage 20% of its time, on the others 0%")


def test_throttling_of_the_host_is_named() -> None:
    hot, elsewhere = (
        make_finding(GPU_THROTTLED, f"GPU 1 of {host} is hot", subject=Subject(host=host))
        for host in ("n1", "n2")
    )
    assert str(message(many({5: 0.1}), (hot, hot, elsewhere))).endswith("; GPU 1 of n1 is hot")

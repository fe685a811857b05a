"""A group is slow only if its collectives are slow after all ranks entered, unlike those of others."""

from __future__ import annotations

from holdfast.core.rank_table import CallTiming, GroupTiming, ProcessGroupInfo
from holdfast.watcher.call_timings import transfers_by_group
from holdfast.watcher.rules import slow_links

HOSTS = {rank: f"n{rank // 4}" for rank in range(16)}


def lanes() -> dict[str, tuple[int, ...]]:
    """Return a group for each of four lanes over four hosts."""
    return {f"dp{lane}": tuple(range(lane, 16, 4)) for lane in range(4)}


def pairs() -> dict[str, tuple[int, ...]]:
    """Return a group of two ranks for each two of four hosts."""
    found = [(one, other) for one in range(4) for other in range(one + 1, 4)]
    return {f"n{one} n{other}": (4 * one, 4 * other) for one, other in found}


def timings(
    groups: dict[str, tuple[int, ...]], slow: dict[str, int], last: int = 0
) -> list[GroupTiming]:
    """Return what each node reports; the transfer takes 50 ms, that of ``slow`` groups longer.

    Only rank ``last`` of each group was in its calls for this short a time.
    """
    return [
        GroupTiming(
            name,
            1,
            2.0,
            tuple(
                CallTiming(at, 1 << 20, slow.get(name, 50_000) + (at % 3) * 1000, rank)
                if index == last
                else CallTiming(at, 1 << 20, 400_000, rank)
                for at in range(8)
            ),
        )
        for name, ranks in groups.items()
        for index, rank in enumerate(ranks)
    ]


def judged(groups: dict[str, tuple[int, ...]], reports: list[GroupTiming]) -> str | None:
    infos = {name: ProcessGroupInfo(name, ranks) for name, ranks in groups.items()}
    finding = slow_links.judge(reports, infos, HOSTS)
    return finding.message if finding is not None else None


def test_the_last_rank_in_shows_the_transfer() -> None:
    groups = {"dp0": ProcessGroupInfo("dp0", (0, 4, 8, 12))}
    found = transfers_by_group(timings({"dp0": (0, 4, 8, 12)}, {}, last=2), groups)
    per_s, transfers = found["dp0"]
    assert per_s == 2.0
    assert [(each.last, each.seconds) for each in transfers[:2]] == [(8, 0.05), (8, 0.051)]


def test_a_group_of_which_a_node_did_not_report_is_left_out() -> None:
    groups = {"dp0": ProcessGroupInfo("dp0", (0, 4, 8, 12)), "dp1": ProcessGroupInfo("dp1", None)}
    reports = timings({"dp0": (0, 4, 8), "dp1": (1, 5)}, {})
    assert transfers_by_group(reports, groups) == {}


def test_one_slow_lane_is_named() -> None:
    assert judged(lanes(), timings(lanes(), {"dp2": 200_000})) == (
        "a link of group 'dp2' is slow: with all ranks in, its collectives take 3.9 times as long "
        "as those of 3 groups alike, 30% of the time"
    )


def test_a_slow_host_in_pairs_is_named() -> None:
    slow = {"n0 n2": 200_000, "n2 n3": 190_000}
    found = judged(pairs(), timings(pairs(), slow))
    assert found is not None
    assert found.startswith("a link of group 'n0 n2', 'n2 n3' is slow")  # n1 n2 is normal
    many = {f"{copy} {name}": ranks for copy in range(2) for name, ranks in pairs().items()}
    only = {name: ranks for name, ranks in many.items() if "n2" not in name or name[0] == "0"}
    all_of_it = {name: 200_000 for name in only if "n2" in name}
    assert str(judged(only, timings(only, all_of_it))).startswith("a link of n2 is slow")


def test_late_ranks_are_no_slow_link() -> None:
    assert judged(lanes(), timings(lanes(), {}, last=3)) is None


def test_without_groups_alike_nothing_is_named() -> None:
    world = {"world": tuple(range(16))}
    assert judged(world, timings(world, {"world": 900_000})) is None
    few = {name: ranks for name, ranks in lanes().items() if name != "dp3"}
    assert judged(few, timings(few, {"dp0": 200_000})) is None


def test_half_of_the_groups_are_no_outliers() -> None:
    assert judged(lanes(), timings(lanes(), {"dp0": 200_000, "dp1": 200_000})) is None

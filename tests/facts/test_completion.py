"""What a dump settles of a rank's calls on NCCL, and what it leaves open."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.facts import completion
from holdfast.facts.flight_recorder import Dump, parse
from holdfast.facts.ranks import GroupProgress, Operation, RankState
from tests.facts.dumps import BEGAN_NS, content, entry, until, written


def dump(*entries: dict[str, Any]) -> Dump:
    """A dump with these entries."""
    return parse(written(content(*entries)))


def call(sequence: int, name: str = "all_reduce", *, group: str = "0", certain: bool = False) -> Operation:
    """A call that is not known to be over."""
    return Operation(group, sequence, name, entered=float(sequence), certain=certain)


def state(*pending: Operation, **entered: int) -> RankState:
    """A rank with these calls, which entered so many collectives of each group."""
    groups = {name.lstrip("g"): GroupProgress(number, 0) for name, number in (entered or {"g0": 31}).items()}
    return RankState(rank=0, groups=groups, pending=pending)


def nothing(group: str, sequence: int) -> None:
    """Finds no call: the box has forgotten them all."""


def test_what_is_over_is_dropped_and_the_first_that_is_not_is_certain() -> None:
    rank = state(*(call(number) for number in range(27, 32)))
    found = completion.settle(rank, parse(written(until(31, 28))), nothing)
    assert [(each.sequence, each.certain) for each in found.pending] == [(29, True), (30, False), (31, False)]
    assert found.groups == {"0": GroupProgress(31, 28)}
    assert found.unseen == ()


def test_nothing_is_pending_where_all_is_over() -> None:
    found = completion.settle(state(call(30), call(31)), parse(written(until(31, 31))), nothing)
    assert found.pending == ()
    assert found.groups == {"0": GroupProgress(31, 31)}


def test_counts_that_differ_settle_nothing_and_that_is_said() -> None:
    rank = state(call(30), call(31))
    found = completion.settle(rank, parse(written(until(29, 28))), nothing)
    assert found.pending == rank.pending
    assert found.groups == rank.groups
    assert found.unseen == (
        "its flight recorder counts 29 collectives of group '0', and its box 31: which of them are over is not known",
    )


def test_a_group_that_the_recorder_has_forgotten_stays_open() -> None:
    rank = state(call(4, group="7"), call(31), g0=31, g7=4)
    found = completion.settle(rank, parse(written(until(31, 31))), nothing)
    assert found.pending == (call(4, group="7"),)
    assert found.unseen == ("its flight recorder remembers no collective of group '7'",)


def test_a_call_older_than_those_handed_out_is_fetched_from_the_box() -> None:
    """The hosts run ahead by more calls than the box hands out as possibly pending."""
    asked: list[tuple[str, int]] = []

    def find(group: str, sequence: int) -> Operation:
        asked.append((group, sequence))
        return call(sequence)

    found = completion.settle(state(call(31)), parse(written(until(31, 3))), find)
    assert asked == [("0", 4)]
    assert [(each.sequence, each.certain) for each in found.pending] == [(4, True), (31, False)]
    lost = completion.settle(state(call(31)), parse(written(until(31, 3))), nothing)
    assert [(each.sequence, each.certain) for each in lost.pending] == [(31, False)]


def test_calls_of_other_kinds_stay_as_they_are() -> None:
    sent, known = call(31, "send"), call(30, certain=True)
    found = completion.settle(state(known, call(31), sent), parse(written(until(31, 31))), nothing)
    assert found.pending == (known, sent)


def test_a_rank_without_doubtful_calls_is_not_touched() -> None:
    rank = state(call(31, certain=True), call(31, "send"))
    assert completion.settle(rank, parse(written(until(2, 1))), nothing) is rank


def test_a_coalesced_block_is_over_when_the_entry_that_closes_it_is() -> None:
    inside = [entry(2, "scheduled", op_id=at) for at in (2, 3)]
    closed = completion.by_group(dump(entry(1), *inside, entry(2, profiling_name="nccl:coalesced")).entries)
    assert (closed["0"].enqueued, closed["0"].first_open) == (2, None)
    still = completion.by_group(
        dump(entry(1), *inside, entry(2, "scheduled", profiling_name="nccl:coalesced"), entry(3, "scheduled")).entries
    )
    assert (still["0"].enqueued, still["0"].first_open) == (3, 2)


def test_sends_and_receives_have_numbers_of_their_own() -> None:
    mixed = dump(entry(1), entry(9, "scheduled", profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=9))
    assert completion.by_group(mixed.entries)["0"].enqueued == 1


def test_the_newest_completion_is_what_the_watchdog_saw() -> None:
    """A call that is not retired gets the time of the dump: counted as progress, a hang would never be silent."""
    last = entry(3, retired=False)
    assert completion.newest(dump(entry(1), entry(2), last), now=2e9) == BEGAN_NS / 1e9 + 2.5
    assert completion.newest(dump(entry(1), entry(2)), now=BEGAN_NS / 1e9 + 2) == BEGAN_NS / 1e9 + 1.5
    assert completion.newest(dump(entry(1, "scheduled")), now=2e9) == 0.0


def test_a_group_that_some_ranks_renamed_is_no_trouble() -> None:
    rank = replace(state(call(31)), groups={})
    assert completion.settle(rank, parse(written(until(31, 30))), nothing).pending == rank.pending

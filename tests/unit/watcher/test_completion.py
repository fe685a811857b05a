"""How a flight-recorder dump settles the completion of NCCL calls."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.rank_table import GroupProgress, RankState, RecordedCall
from holdfast.watcher.flight_recorder import completion
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump, parse_dump
from tests.unit.diagnose.dump_factory import BEGAN_NS, content, entry, until, written


def dump(*entries: dict[str, Any]) -> FlightRecorderDump:
    """Return a dump with these entries."""
    return parse_dump(written(content(*entries)))


def call(
    sequence: int, name: str = "all_reduce", *, group: str = "0", certain: bool = False
) -> RecordedCall:
    """Return a call of unknown completion."""
    return RecordedCall(group, sequence, name, entered=float(sequence), certain=certain)


def state(*pending: RecordedCall, **entered: int) -> RankState:
    """Return a rank with these calls that entered ``entered`` collectives of each group."""
    groups = {
        name.lstrip("g"): GroupProgress(number, 0)
        for name, number in (entered or {"g0": 31}).items()
    }
    return RankState(rank=0, groups=groups, pending=pending)


def nothing(group: str, sequence: int) -> None:
    """Find no call, as if the trace file had lost all of them."""


def test_completed_calls_are_dropped_and_the_first_open_one_is_certain() -> None:
    rank = state(*(call(number) for number in range(27, 32)))
    found = completion.mark_completed(rank, parse_dump(written(until(31, 28))), nothing)
    assert [(each.sequence, each.certain) for each in found.pending] == [
        (29, True),
        (30, False),
        (31, False),
    ]
    assert found.groups == {"0": GroupProgress(31, 28)}
    assert found.unseen == ()


def test_nothing_is_pending_if_all_calls_completed() -> None:
    found = completion.mark_completed(
        state(call(30), call(31)), parse_dump(written(until(31, 31))), nothing
    )
    assert found.pending == ()
    assert found.groups == {"0": GroupProgress(31, 31)}


def test_different_counts_leave_completion_unknown() -> None:
    rank = state(call(30), call(31))
    found = completion.mark_completed(rank, parse_dump(written(until(29, 28))), nothing)
    assert found.pending == rank.pending
    assert found.groups == rank.groups
    assert found.unseen == (
        "completion in group '0' is unknown: its flight recorder counts 29 collectives, its trace file 31",
    )


def test_a_group_without_recorded_collectives_stays_open() -> None:
    rank = state(call(4, group="7"), call(31), g0=31, g7=4)
    found = completion.mark_completed(rank, parse_dump(written(until(31, 31))), nothing)
    assert found.pending == (call(4, group="7"),)
    assert found.unseen == ("its flight recorder has no collective of group '7'",)


def test_an_older_open_call_is_read_from_the_trace_file() -> None:
    """The hosts ran ahead by more calls than the trace reader returns as possibly pending."""
    queries: list[tuple[str, int]] = []

    def find(group: str, sequence: int) -> RecordedCall:
        queries.append((group, sequence))
        return call(sequence)

    found = completion.mark_completed(state(call(31)), parse_dump(written(until(31, 3))), find)
    assert queries == [("0", 4)]
    assert [(each.sequence, each.certain) for each in found.pending] == [(4, True), (31, False)]
    lost = completion.mark_completed(state(call(31)), parse_dump(written(until(31, 3))), nothing)
    assert [(each.sequence, each.certain) for each in lost.pending] == [(31, False)]


def test_point_to_point_and_certain_calls_do_not_change() -> None:
    sent, known = call(31, "send"), call(30, certain=True)
    found = completion.mark_completed(
        state(known, call(31), sent), parse_dump(written(until(31, 31))), nothing
    )
    assert found.pending == (known, sent)


def test_a_rank_without_doubtful_calls_does_not_change() -> None:
    rank = state(call(31, certain=True), call(31, "send"))
    assert completion.mark_completed(rank, parse_dump(written(until(2, 1))), nothing) is rank


def test_a_coalesced_block_completes_with_its_last_entry() -> None:
    inside = [entry(2, "scheduled", op_id=at) for at in (2, 3)]
    closed = completion.completion_by_group(
        dump(entry(1), *inside, entry(2, profiling_name="nccl:coalesced")).entries
    )
    assert (closed["0"].enqueued, closed["0"].first_open) == (2, None)
    still = completion.completion_by_group(
        dump(
            entry(1),
            *inside,
            entry(2, "scheduled", profiling_name="nccl:coalesced"),
            entry(3, "scheduled"),
        ).entries
    )
    assert (still["0"].enqueued, still["0"].first_open) == (3, 2)


def test_sends_and_receives_are_counted_separately() -> None:
    mixed = dump(
        entry(1), entry(9, "scheduled", profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=9)
    )
    assert completion.completion_by_group(mixed.entries)["0"].enqueued == 1


def test_the_last_completion_is_that_seen_by_the_watchdog() -> None:
    """A call that is not retired has the time of the dump, which is no progress."""
    last = entry(3, retired=False)
    assert (
        completion.last_completion(dump(entry(1), entry(2), last), now=2e9) == BEGAN_NS / 1e9 + 2.5
    )
    assert (
        completion.last_completion(dump(entry(1), entry(2)), now=BEGAN_NS / 1e9 + 2)
        == BEGAN_NS / 1e9 + 1.5
    )
    assert completion.last_completion(dump(entry(1, "scheduled")), now=2e9) == 0.0


def test_a_group_renamed_by_some_ranks_is_matched() -> None:
    rank = replace(state(call(31)), groups={})
    assert (
        completion.mark_completed(rank, parse_dump(written(until(31, 30))), nothing).pending
        == rank.pending
    )

"""Dumps that are reduced in parts and put together: the same table as of all at once, and nothing of hostile files."""

from __future__ import annotations

import gc
import json
from io import BytesIO
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DumpNoise
from holdfast.facts import dumps, reduced_dumps
from holdfast.facts.dump_reduction import Reducer
from holdfast.facts.evidence import Ignored, Kind, Piece
from holdfast.facts.evidence.kinds import kind
from holdfast.facts.reduced_dumps import Call, Reduced
from tests.facts.dumps import until, written
from tests.facts.many_dumps import Groups, Recorder

RANKS = 8


def groups(rank: int) -> Groups:
    """The world, and a group of two of which there are several by the same name, as ``split_group`` makes them."""
    first = rank // 2 * 2
    return {"0": ("default_pg", range(RANKS)), "1": ("pair", range(first, first + 2))}


def piece(rank: int) -> Piece:
    """The dump of a rank; rank 3 never enters the last call, rank 6 calls something else before."""
    recorder = Recorder(rank, groups(rank))
    for at in range(20):
        recorder.call("all_gather" if (rank, at) == (6, 12) else "all_reduce", "01"[at % 2], line=40 + at % 3)
    recorder.transfer("send" if rank % 2 else "recv", 1 - rank % 2, "1", state="scheduled")
    if rank != 3:
        recorder.call(state="scheduled")
    data = written(recorder.dump())
    return Piece(f"trace_rank_{rank}", Kind.DUMP, len(data), lambda: BytesIO(data))


def reduced(*ranks: int) -> Piece:
    """A file of these ranks' dumps, reduced."""
    data = reduced_dumps.encode(dumps.reduce([piece(rank) for rank in ranks]).reduced)
    return Piece(f"part{ranks[0]}", Kind.REDUCED, len(data), lambda: BytesIO(data))


def told(table: dumps.DumpTable) -> object:
    """All that a table says, with calls in place of their numbers, which depend on the order of reading."""

    def call(place: int) -> tuple[object, ...]:
        found = table.calls[place]
        return msgspec.structs.replace(found, parts=()), tuple(call(part) for part in found.parts)

    histories = {
        group: {rank: (mine.first, [call(at) for at in mine.calls]) for rank, mine in each.items()}
        for group, each in table.histories.items()
    }
    return table.ranks, table.groups, table.world_size, histories, table.transfers, table.files


def test_parts_put_together_over_two_levels_make_the_table_of_all_at_once() -> None:
    nodes = [reduced(5, 4), reduced(1, 0, 3), reduced(2)]
    rack = reduced_dumps.encode(dumps.reduce(nodes).reduced)
    halves = [Piece("rack", Kind.REDUCED, len(rack), lambda: BytesIO(rack)), reduced(7), piece(6)]
    at_once = dumps.read([piece(rank) for rank in range(RANKS)])
    assert told(dumps.read(halves)) == told(at_once)
    assert {"1 of ranks 0-1", "1 of ranks 6-7"} < set(at_once.groups)
    assert at_once.unseen == ()


def test_a_rank_that_is_in_two_parts_is_said_so() -> None:
    found = dumps.reduce([reduced(0, 1), reduced(1, 2)])
    assert [state.rank for state in dumps.table(found.reduced).ranks] == [0, 1, 2]
    assert found.ignored == [Ignored("trace_rank_1", "rank 1 has a newer dump")]


def test_ranks_that_did_the_same_share_their_history() -> None:
    found = dumps.reduce([piece(rank) for rank in range(RANKS)]).reduced
    # The pairs, and 6 and 7 apart; of the world all, 3 (a call less) and 6 (another call).
    assert len(found.histories) < RANKS


def test_its_kind_is_told_from_its_content() -> None:
    assert kind(reduced_dumps.encode(Reduced())) is Kind.REDUCED


def content() -> dict[str, Any]:
    """A file of two ranks, before it is written."""
    with reduced(0, 1).open() as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


WRONG = [
    ("members", [[0, -1]]), ("members", [[]]), ("calls", []), ("histories", ["AAA="]), ("histories", ["////"]),
    ("histories", []), ("members", []), ("ranks", [[0, "x", 0.0, True, [], [[5, ["0", 1, "x"]]]]]),
    ("ranks", [[1 << 40, "x", 0.0, True, []]]), ("calls", [["", "", [], [], [], [], None, [0]]]), ("schema", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_numbers_that_point_nowhere_are_refused(key: str, value: object) -> None:
    with pytest.raises(DumpNoise):
        reduced_dumps.decode(json.dumps(content() | {key: value}).encode(), "part")


LEAVES = st.none() | st.integers(-3, 1 << 70) | st.text(max_size=4) | st.booleans() | st.floats()


@given(st.data())
def test_a_changed_file_is_read_or_refused(data: st.DataObject) -> None:
    made = content()
    at: Any = made
    while isinstance(at, (list, dict)) and at:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (list, dict)) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(LEAVES)
            break
        at = at[key]
    changed = json.dumps(made).encode()
    reducer = Reducer()
    reducer.add(Piece("part", Kind.REDUCED, len(changed), lambda: BytesIO(changed)))
    dumps.table(reducer.reduced)


@pytest.mark.parametrize("parts", [(1,), (2,), (1, 3)])
def test_calls_without_end_are_refused(parts: tuple[int, ...]) -> None:
    deep = Reduced(calls=[Call(""), Call("coalesced", parts=(0,)), Call("coalesced", parts=parts)])
    with pytest.raises(DumpNoise, match="do not fit"):
        reduced_dumps.decode(reduced_dumps.encode(deep), "part")


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("data", [written(until(2, 2)), b"\x80\x02"])
def test_the_collector_is_left_as_it_was(was_on: bool, data: bytes) -> None:  # noqa: FBT001 - a parameter of a test
    (gc.enable if was_on else gc.disable)()
    try:
        dumps.read([Piece("trace_rank_0", Kind.DUMP, len(data), lambda: BytesIO(data))])
        assert gc.isenabled() is was_on
    finally:
        gc.enable()

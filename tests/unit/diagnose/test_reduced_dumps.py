"""Dumps reduced in parts and merged yield the same table as all at once; corrupt files are refused."""

from __future__ import annotations

import gc
import json
from io import BytesIO
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import DumpCorrupt
from holdfast.diagnose.dumps import dump_set, reduced_dumps
from holdfast.diagnose.dumps.dump_reduction import DumpReducer
from holdfast.diagnose.dumps.reduced_dumps import CallSignature, ReducedDumps
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.diagnose.evidence.file_types import detect_kind
from tests.unit.diagnose.dump_factory import until, written
from tests.unit.diagnose.many_dumps import Groups, Recorder

RANKS = 8


def groups(rank: int) -> Groups:
    """Return the world and a pair; all pairs have one name, as with ``split_group``."""
    first = rank // 2 * 2
    return {"0": ("default_pg", range(RANKS)), "1": ("pair", range(first, first + 2))}


def piece(rank: int) -> EvidenceFile:
    """Return the dump of a rank; rank 3 never enters the last call, rank 6 makes another call."""
    recorder = Recorder(rank, groups(rank))
    for at in range(20):
        recorder.call(
            "all_gather" if (rank, at) == (6, 12) else "all_reduce", "01"[at % 2], line=40 + at % 3
        )
    recorder.transfer("send" if rank % 2 else "recv", 1 - rank % 2, "1", state="scheduled")
    if rank != 3:
        recorder.call(state="scheduled")
    data = written(recorder.dump())
    return EvidenceFile(f"trace_rank_{rank}", EvidenceKind.DUMP, len(data), lambda: BytesIO(data))


def reduced(*ranks: int) -> EvidenceFile:
    """Return a file with the reduced dumps of these ranks."""
    data = reduced_dumps.encode(dump_set.reduce_files([piece(rank) for rank in ranks]).reduced)
    return EvidenceFile(f"part{ranks[0]}", EvidenceKind.REDUCED, len(data), lambda: BytesIO(data))


def table_content(table: dump_set.DumpTable) -> object:
    """Return the content of a table with calls instead of indices, which depend on the order."""

    def call(place: int) -> tuple[object, ...]:
        found = table.calls[place]
        return msgspec.structs.replace(found, parts=()), tuple(call(part) for part in found.parts)

    histories = {
        group: {
            rank: (history.first, [call(at) for at in history.calls])
            for rank, history in each.items()
        }
        for group, each in table.histories.items()
    }
    return table.ranks, table.groups, table.world_size, histories, table.transfers, table.files


def test_parts_merged_over_two_levels_equal_one_table() -> None:
    nodes = [reduced(5, 4), reduced(1, 0, 3), reduced(2)]
    rack = reduced_dumps.encode(dump_set.reduce_files(nodes).reduced)
    halves = [
        EvidenceFile("rack", EvidenceKind.REDUCED, len(rack), lambda: BytesIO(rack)),
        reduced(7),
        piece(6),
    ]
    at_once = dump_set.read_dumps([piece(rank) for rank in range(RANKS)])
    assert table_content(dump_set.read_dumps(halves)) == table_content(at_once)
    assert {"1 of ranks 0-1", "1 of ranks 6-7"} < set(at_once.groups)
    assert at_once.unseen == ()


def test_rank_in_two_parts_is_skipped_once() -> None:
    found = dump_set.reduce_files([reduced(0, 1), reduced(1, 2)])
    assert [state.rank for state in dump_set.build_table(found.reduced).ranks] == [0, 1, 2]
    assert found.skipped == [SkippedEvidence("trace_rank_1", "rank 1 has a newer dump")]


def test_ranks_with_equal_calls_share_a_history() -> None:
    found = dump_set.reduce_files([piece(rank) for rank in range(RANKS)]).reduced
    # The pairs, with 6 and 7 separate; of the world group all, 3 (one call fewer) and 6 (another call).
    assert len(found.histories) < RANKS


def test_file_type_is_detected_from_content() -> None:
    assert detect_kind(reduced_dumps.encode(ReducedDumps())) is EvidenceKind.REDUCED


def content() -> dict[str, Any]:
    """Return the content of a file of two ranks."""
    with reduced(0, 1).open() as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


WRONG = [
    ("members", [[0, -1]]),
    ("members", [[]]),
    ("calls", []),
    ("histories", ["AAA="]),
    ("histories", ["////"]),
    ("histories", []),
    ("members", []),
    ("ranks", [[0, "x", 0.0, True, [], [[5, ["0", 1, "x"]]]]]),
    ("ranks", [[1 << 40, "x", 0.0, True, []]]),
    ("calls", [["", "", [], [], [], [], None, [0]]]),
    ("schema", "other"),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_indices_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(DumpCorrupt):
        reduced_dumps.decode(json.dumps(content() | {key: value}).encode(), "part")


LEAVES = st.none() | st.integers(-3, 1 << 70) | st.text(max_size=4) | st.booleans() | st.floats()


@given(st.data())
def test_modified_file_is_read_or_refused(data: st.DataObject) -> None:
    document = content()
    at: Any = document
    while isinstance(at, (list, dict)) and at:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (list, dict)) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(LEAVES)
            break
        at = at[key]
    changed = json.dumps(document).encode()
    reducer = DumpReducer()
    reducer.add(EvidenceFile("part", EvidenceKind.REDUCED, len(changed), lambda: BytesIO(changed)))
    dump_set.build_table(reducer.reduced)


@pytest.mark.parametrize("parts", [(1,), (2,), (1, 3)])
def test_nested_and_cyclic_blocks_are_refused(parts: tuple[int, ...]) -> None:
    deep = ReducedDumps(
        calls=[
            CallSignature(""),
            CallSignature("coalesced", parts=(0,)),
            CallSignature("coalesced", parts=parts),
        ]
    )
    with pytest.raises(DumpCorrupt, match="contradict each other"):
        reduced_dumps.decode(reduced_dumps.encode(deep), "part")


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("data", [written(until(2, 2)), b"\x80\x02"])
def test_garbage_collector_state_is_restored(was_on: bool, data: bytes) -> None:  # noqa: FBT001 - a test parameter
    (gc.enable if was_on else gc.disable)()
    try:
        dump_set.read_dumps(
            [EvidenceFile("trace_rank_0", EvidenceKind.DUMP, len(data), lambda: BytesIO(data))]
        )
        assert gc.isenabled() is was_on
    finally:
        gc.enable()

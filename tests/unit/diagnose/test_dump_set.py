"""Dumps of many ranks in one table: groups, progress, open calls, blocks, ring buffers, unnamed ranks."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.rank_table import GroupProgress, ProcessGroupInfo
from holdfast.diagnose.dumps import dump_set
from holdfast.diagnose.dumps.rules import judge
from tests.hypothesis_profiles import examples
from tests.unit.diagnose.dump_factory import written
from tests.unit.diagnose.many_dumps import Recorder, job, piece, table


def three(recorder: Recorder) -> None:
    """Record three collectives, the last one open."""
    recorder.call().call(line=42).call("broadcast", line=43, state="scheduled")


def test_table_has_progress_open_calls_and_lines() -> None:
    found = table(job(2, three))
    assert (found.world_size, found.unseen) == (2, ())
    assert found.groups == {"0": ProcessGroupInfo("0", (0, 1), "default_pg", "nccl")}
    state = found.ranks[1]
    assert state.groups == {"0": GroupProgress(3, 2)}
    (call,) = state.pending
    assert (call.name, call.sequence, call.certain, call.completed) == ("broadcast", 3, True, None)
    assert call.site is not None
    assert (call.site.file, call.site.line) == ("/job/train.py", 43)
    assert [(call.sequence, call.site.line) for call in state.recent if call.site] == [(2, 42)]


def test_equal_calls_of_all_ranks_share_one_entry() -> None:
    found = table(job(8, three))
    assert len(found.calls) == 4
    assert {history.calls.tobytes() for history in found.histories["0"].values()} == {
        next(iter(found.histories["0"].values())).calls.tobytes()
    }


def test_groups_with_equal_names_stay_separate() -> None:
    """split_group gives all parts of a group the same name."""
    parts = [{"7": ("split", (0, 1))}, {"7": ("split", (2, 3))}]
    recorders = [
        Recorder(rank, {"0": ("default_pg", range(4)), **parts[rank // 2]}) for rank in range(4)
    ]
    for recorder in recorders:
        recorder.call(group="7", size=4 if recorder.rank < 2 else 9)
    found = table(recorders)
    assert found.groups["7 of ranks 0-1"].ranks == (0, 1)
    assert found.groups["7 of ranks 2-3"].ranks == (2, 3)


def test_calls_of_a_block_get_the_state_of_the_closing_call() -> None:
    def block(recorder: Recorder) -> None:
        for _ in range(2):
            recorder.call("_broadcast_oop", inside=True, state="scheduled")
        recorder.call("ALLGATHER_coalesced", input_sizes=[], output_sizes=[])

    state = table(job(2, block)).ranks[0]
    assert (state.pending, state.groups) == ((), {"0": GroupProgress(1, 1)})


def test_block_of_transfers_completes_with_its_closing_call() -> None:
    def exchange(recorder: Recorder) -> None:
        recorder.call()
        other = 1 - recorder.rank
        recorder.transfer("send", other, state="scheduled", p2p_seq_id=1)
        recorder.transfer("recv", other, state="scheduled", p2p_seq_id=1)
        recorder.entries.append(
            recorder.entries[-1]
            | {
                "record_id": 3,
                "profiling_name": "nccl:coalesced",
                "state": "completed",
                "input_sizes": [],
                "is_p2p": False,
            }
        )

    found = table(job(2, exchange))
    assert found.ranks[0].groups == {"0": GroupProgress(1, 1)}
    assert [each.open for each in found.transfers[0]] == [(), ()]


def test_closing_call_of_a_lost_block_is_not_a_collective() -> None:
    def exchange(recorder: Recorder) -> None:
        recorder.call(state="scheduled")
        closing = {
            "profiling_name": "nccl:coalesced",
            "p2p_seq_id": 1,
            "record_id": 3,
            "state": "completed",
        }
        recorder.entries.append(recorder.entries[-1] | closing)

    assert table(job(2, exchange)).ranks[0].groups == {"0": GroupProgress(1, 0)}


def test_peers_become_global_ranks() -> None:
    def send(recorder: Recorder) -> None:
        if recorder.rank == 5:
            recorder.transfer("send", 0, "3", state="scheduled")

    (sent,) = table(job(6, send, {"3": ("pipeline", (2, 5))})).transfers[5]
    assert (sent.group, sent.name, sent.peer, len(sent.open)) == ("3", "send", 2, 1)


def test_status_provides_progress_if_only_open_calls_are_dumped() -> None:
    def one(recorder: Recorder) -> None:
        recorder.call().call(group="5").call(group="5")

    found = table(job(2, one, {"5": ("tp", (0, 1))}), active_only=True)
    assert found.ranks[1].groups == {"0": GroupProgress(1, 1), "5": GroupProgress(2, 2)}


def test_rank_is_taken_from_file_name_transfers_or_groups() -> None:
    recorders = job(
        4, lambda recorder: recorder.call(), {"1": ("a", (0, 1)), "2": ("b", (1, 2, 3))}
    )
    recorders[2].transfer("send", 0, "2")
    data = [written(each.dump()) for each in recorders]
    found = dump_set.read_dumps(
        [piece("trace", data[1]), piece("node_7", data[2]), piece("x", data[3])]
    )
    assert [state.rank for state in found.ranks] == [1, 2]
    assert any("its rank is unknown" in text and text.startswith("x:") for text in found.unseen)


def test_missing_and_corrupt_dumps_are_unseen() -> None:
    data = written(job(4, three)[1].dump())
    found = dump_set.read_dumps(
        [piece("t_rank_1", data), piece("t_rank_2", data[:90]), piece("t_rank_3", b"\x00junk")]
    )
    assert [state.rank for state in found.ranks] == [1]
    assert "ranks 0,2-3: no dump" in found.unseen
    assert any(
        ("t_rank_2" in text and "cut short" in text) or "ends in the middle" in text
        for text in found.unseen
    )
    assert any("t_rank_3" in text for text in found.unseen)


def test_newer_dump_of_a_rank_is_used() -> None:
    old, new = (written(job(2, program)[1].dump()) for program in (lambda each: each.call(), three))
    for pieces in (
        [piece("a_rank_1", old), piece("b_rank_1", new)],
        [piece("b_rank_1", new), piece("a_rank_1", old)],
    ):
        found = dump_set.read_dumps(pieces)
        assert found.ranks[0].groups["0"].entered == 3
        assert "a_rank_1: rank 1 has a newer dump" in found.unseen


def test_members_of_gloo_groups_come_from_other_evidence() -> None:
    def call(recorder: Recorder) -> None:
        recorder.call(group="4", profiling_name="gloo:all_reduce", state="scheduled")

    recorders = job(2, call, {"4": ("pair", (0, 1))})
    without = {"": {"name": "", "desc": "", "ranks": "[]"}}
    pieces = [
        piece(
            f"fr_rank_{each.rank}.json", json.dumps(each.dump() | {"pg_config": without}).encode()
        )
        for each in recorders
    ]
    found = dump_set.read_dumps(pieces)
    assert found.groups["4"].ranks is None
    assert any("'4'" in text and "gloo" in text for text in found.unseen)
    assert dump_set.read_dumps(pieces, {"4": ProcessGroupInfo("4", (0, 1))}).groups["4"].ranks == (
        0,
        1,
    )


def test_dump_without_entries_is_a_rank_without_calls() -> None:
    data = job(2, three)[0].dump()
    del data["entries"]
    (state,) = dump_set.read_dumps([piece("fr_rank_0.json", json.dumps(data).encode())]).ranks
    assert (state.rank, state.pending) == (0, ())


NUMBERS = st.integers(-3, 5) | st.integers(-(1 << 63), 1 << 63)
WRONG = st.none() | NUMBERS | st.text(max_size=5) | st.lists(NUMBERS, max_size=3) | st.booleans()
RANKS = st.lists(NUMBERS, max_size=4).map(str) | st.lists(NUMBERS, max_size=4) | WRONG


@settings(max_examples=examples(150))
@given(st.data())
def test_any_dump_content_yields_a_verdict(data: Any) -> None:
    """No value of any key causes an error or an implausible world size."""

    def program(recorder: Recorder) -> None:
        recorder.call().transfer("send", 1 - recorder.rank, state="scheduled").call(
            state="scheduled"
        )
        recorder.call("coalesced", state="scheduled")

    contents = [each.dump() for each in job(2, program)]
    for content in contents:
        for each in content["entries"]:
            key = data.draw(st.sampled_from(sorted(each)))
            each[key] = data.draw(WRONG | st.just(each[key]))
        content["pg_config"]["0"]["ranks"] = data.draw(RANKS)
        content["pg_status"]["0"]["last_completed_collective"] = data.draw(WRONG)
    pieces = [piece(f"rank_{rank}", written(content)) for rank, content in enumerate(contents)]
    pieces.append(piece("trace_rank_99999999999", written(contents[0])))
    found = dump_set.read_dumps(pieces)
    assert found.world_size <= 1 << 17
    judge(found)


def test_unknown_backend_is_unseen() -> None:
    found = table(job(2, lambda each: each.call(profiling_name="newccl:all_reduce")))
    assert found.unseen == ("unknown backend 'newccl': its call states may have another meaning",)
    assert table(job(2, lambda each: each.call())).unseen == ()

"""Dumps of many ranks put into one table: groups, progress, open calls, blocks, rings, ranks that no name tells."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.facts import dumps
from holdfast.facts.ranks import Group, GroupProgress
from holdfast.rules.dumps import judge
from tests.facts.dumps import written
from tests.facts.many_dumps import Recorder, job, piece, table


def three(recorder: Recorder) -> None:
    """Three collectives, of which the last is open."""
    recorder.call().call(line=42).call("broadcast", line=43, state="scheduled")


def test_progress_open_calls_and_lines_are_kept() -> None:
    found = table(job(2, three))
    assert (found.world_size, found.unseen) == (2, ())
    assert found.groups == {"0": Group("0", (0, 1), "default_pg", "nccl")}
    state = found.ranks[1]
    assert state.groups == {"0": GroupProgress(3, 2)}
    (call,) = state.pending
    assert (call.name, call.sequence, call.certain, call.completed) == ("broadcast", 3, True, None)
    assert call.site is not None
    assert (call.site.file, call.site.line) == ("/job/train.py", 43)
    assert [(call.sequence, call.site.line) for call in state.recent if call.site] == [(2, 42)]


def test_equal_calls_of_all_ranks_are_one() -> None:
    found = table(job(8, three))
    assert len(found.calls) == 4
    assert {history.calls.tobytes() for history in found.histories["0"].values()} == {
        next(iter(found.histories["0"].values())).calls.tobytes()
    }


def test_two_groups_of_one_name_stay_two() -> None:
    """split_group gives the parts of a group one name."""
    parts = [{"7": ("split", (0, 1))}, {"7": ("split", (2, 3))}]
    recorders = [Recorder(rank, {"0": ("default_pg", range(4)), **parts[rank // 2]}) for rank in range(4)]
    for recorder in recorders:
        recorder.call(group="7", size=4 if recorder.rank < 2 else 9)
    found = table(recorders)
    assert found.groups["7 of ranks 0-1"].ranks == (0, 1)
    assert found.groups["7 of ranks 2-3"].ranks == (2, 3)


def test_the_calls_of_a_block_take_the_state_of_the_one_that_closes_it() -> None:
    def block(recorder: Recorder) -> None:
        for _ in range(2):
            recorder.call("_broadcast_oop", inside=True, state="scheduled")
        recorder.call("ALLGATHER_coalesced", input_sizes=[], output_sizes=[])

    state = table(job(2, block)).ranks[0]
    assert (state.pending, state.groups) == ((), {"0": GroupProgress(1, 1)})


def test_a_block_of_transfers_is_no_collective_and_is_over_when_it_closes() -> None:
    def exchange(recorder: Recorder) -> None:
        recorder.call()
        other = 1 - recorder.rank
        recorder.transfer("send", other, state="scheduled", p2p_seq_id=1)
        recorder.transfer("recv", other, state="scheduled", p2p_seq_id=1)
        recorder.entries.append(recorder.entries[-1] | {
            "record_id": 3, "profiling_name": "nccl:coalesced", "state": "completed", "input_sizes": [],
            "is_p2p": False,
        })  # fmt: skip

    found = table(job(2, exchange))
    assert found.ranks[0].groups == {"0": GroupProgress(1, 1)}
    assert [each.open for each in found.transfers[0]] == [(), ()]


def test_the_end_of_a_block_of_transfers_that_the_ring_has_lost_is_no_collective() -> None:
    def exchange(recorder: Recorder) -> None:
        recorder.call(state="scheduled")
        closing = {"profiling_name": "nccl:coalesced", "p2p_seq_id": 1, "record_id": 3, "state": "completed"}
        recorder.entries.append(recorder.entries[-1] | closing)

    assert table(job(2, exchange)).ranks[0].groups == {"0": GroupProgress(1, 0)}


def test_peers_are_turned_into_ranks_of_the_job() -> None:
    def send(recorder: Recorder) -> None:
        if recorder.rank == 5:
            recorder.transfer("send", 0, "3", state="scheduled")

    (sent,) = table(job(6, send, {"3": ("pipeline", (2, 5))})).transfers[5]
    assert (sent.group, sent.name, sent.peer, len(sent.open)) == ("3", "send", 2, 1)


def test_of_a_dump_of_open_calls_alone_the_status_tells_how_far_the_groups_are() -> None:
    def one(recorder: Recorder) -> None:
        recorder.call().call(group="5").call(group="5")

    found = table(job(2, one, {"5": ("tp", (0, 1))}), active_only=True)
    assert found.ranks[1].groups == {"0": GroupProgress(1, 1), "5": GroupProgress(2, 2)}


def test_the_rank_is_told_by_name_by_transfers_or_by_the_groups() -> None:
    recorders = job(4, lambda recorder: recorder.call(), {"1": ("a", (0, 1)), "2": ("b", (1, 2, 3))})
    recorders[2].transfer("send", 0, "2")
    data = [written(each.dump()) for each in recorders]
    found = dumps.read([piece("trace", data[1]), piece("node_7", data[2]), piece("x", data[3])])
    assert [state.rank for state in found.ranks] == [1, 2]
    assert any("tell whose dump it is" in text and text.startswith("x:") for text in found.unseen)


def test_what_is_missing_or_broken_is_said() -> None:
    data = written(job(4, three)[1].dump())
    found = dumps.read([piece("t_rank_1", data), piece("t_rank_2", data[:90]), piece("t_rank_3", b"\x00junk")])
    assert [state.rank for state in found.ranks] == [1]
    assert "ranks 0,2-3: no dump" in found.unseen
    assert any(("t_rank_2" in text and "cut short" in text) or "ends in the middle" in text for text in found.unseen)
    assert any("t_rank_3" in text for text in found.unseen)


def test_of_two_dumps_of_a_rank_the_newer_is_used() -> None:
    old, new = (written(job(2, program)[1].dump()) for program in (lambda each: each.call(), three))
    for pieces in ([piece("a_rank_1", old), piece("b_rank_1", new)], [piece("b_rank_1", new), piece("a_rank_1", old)]):
        found = dumps.read(pieces)
        assert found.ranks[0].groups["0"].entered == 3
        assert "a_rank_1: rank 1 has a newer dump" in found.unseen


def test_gloo_lacks_the_members_of_groups_and_somebody_else_may_know_them() -> None:
    def call(recorder: Recorder) -> None:
        recorder.call(group="4", profiling_name="gloo:all_reduce", state="scheduled")

    recorders = job(2, call, {"4": ("pair", (0, 1))})
    without = {"": {"name": "", "desc": "", "ranks": "[]"}}
    pieces = [piece(f"fr_rank_{each.rank}.json", json.dumps(each.dump() | {"pg_config": without}).encode())
              for each in recorders]  # fmt: skip
    found = dumps.read(pieces)
    assert found.groups["4"].ranks is None
    assert any("'4'" in text and "gloo" in text for text in found.unseen)
    assert dumps.read(pieces, {"4": Group("4", (0, 1))}).groups["4"].ranks == (0, 1)


def test_a_dump_without_entries_is_a_rank_without_calls() -> None:
    data = job(2, three)[0].dump()
    del data["entries"]
    (state,) = dumps.read([piece("fr_rank_0.json", json.dumps(data).encode())]).ranks
    assert (state.rank, state.pending) == (0, ())


NUMBERS = st.integers(-3, 5) | st.integers(-(1 << 63), 1 << 63)
WRONG = st.none() | NUMBERS | st.text(max_size=5) | st.lists(NUMBERS, max_size=3) | st.booleans()
RANKS = st.lists(NUMBERS, max_size=4).map(str) | st.lists(NUMBERS, max_size=4) | WRONG


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_stands_in_a_dump_there_is_a_verdict(data: Any) -> None:
    """No value of any key makes it fail, or makes it believe in a job of a thousand million ranks."""

    def program(recorder: Recorder) -> None:
        recorder.call().transfer("send", 1 - recorder.rank, state="scheduled").call(state="scheduled")
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
    found = dumps.read(pieces)
    assert found.world_size <= 1 << 17
    judge(found)


def test_a_backend_that_nobody_knows_is_doubted() -> None:
    found = table(job(2, lambda each: each.call(profiling_name="newccl:all_reduce")))
    assert found.unseen == ("backend 'newccl' is not known here: whether its calls are over may be told otherwise",)
    assert table(job(2, lambda each: each.call())).unseen == ()

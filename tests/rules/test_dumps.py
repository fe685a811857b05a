"""Verdicts over the dumps of many ranks: what is blamed on whom, and what on nobody."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.facts import dumps
from holdfast.findings import Level, Verdict
from holdfast.rules import dumps as rules
from tests.facts.dumps import written
from tests.facts.many_dumps import Recorder, job, piece, table


def judged(recorders: list[Recorder], last: int = 2000, *, active_only: bool = False) -> Verdict:
    """The verdict over the dumps of these ranks, in any order."""
    shuffled = random.Random(3).sample(recorders, len(recorders))
    return rules.judge(table(shuffled, last, active_only=active_only))


def blamed(verdict: Verdict) -> tuple[str, int | None] | None:
    """Cause and rank of the root."""
    return (verdict.root.cause, verdict.root.subject.rank) if verdict.root else None


def trained(recorder: Recorder, calls: int = 6) -> Recorder:
    """A rank after some collectives that all have completed."""
    for number in range(calls):
        recorder.call(line=41 + number % 2)
    return recorder


def test_a_rank_that_never_enters_is_named_with_its_line_and_that_of_the_waiters() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder)
        if recorder.rank != 2:
            recorder.call("broadcast", line=50, state="scheduled")

    verdict = judged(job(4, program))
    assert blamed(verdict) == ("rank-missing-collective", 2)
    assert verdict.root is not None
    assert "broadcast #7 at train.py:50" in verdict.root.message
    assert "train.py:42" in verdict.root.message
    assert (verdict.root.subject.line, verdict.suspects) == (42, ())
    assert {fact.origin for fact in verdict.root.evidence} == {"nccl_trace_rank_0", "nccl_trace_rank_2"}
    assert verdict.consequences[0].message.startswith("ranks 0-1,3 wait in broadcast #7")


def test_many_ranks_that_are_awaited_are_counted() -> None:
    verdict = judged(job(60, lambda each: trained(each).call(line=50, state="scheduled") if each.rank < 35 else None))
    assert verdict.root is not None
    assert len(verdict.suspects) == 15
    assert any(text.startswith("ranks 51-59: awaited as well") for text in verdict.unseen)


@pytest.mark.parametrize("guilty", [0, 3])
@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({"name": "all_gather"}, "mismatched-operation"),
        ({"size": 5}, "mismatched-shape"),
        ({"input_dtypes": ["Double"]}, "mismatched-dtype"),
    ],
)
def test_a_mismatch_is_blamed_on_the_minority(guilty: int, odd: dict[str, object], cause: str) -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder)
        recorder.call(**({"line": 50, "state": "scheduled"} | (odd if recorder.rank == guilty else {})))

    verdict = judged(job(4, program))
    assert blamed(verdict) == (cause, guilty)
    assert verdict.suspects == ()


def test_a_tie_is_called_a_tie() -> None:
    verdict = judged(job(4, lambda each: trained(each).call(size=4 + each.rank // 2, line=50, state="scheduled")))
    assert verdict.root is not None
    assert (verdict.root.cause, "a tie" in verdict.root.message) == ("mismatched-shape", True)
    assert (verdict.root.subject.rank, verdict.root.subject.line) == (None, 50)


def test_a_rank_that_leaves_a_call_out_is_named() -> None:
    def program(recorder: Recorder) -> None:
        for step in range(5):
            recorder.call("all_reduce", line=41)
            recorder.call("broadcast", line=42, state="completed" if step < 4 else "scheduled")
        if recorder.rank == 1:
            del recorder.entries[-2:]
            recorder._collectives["0"] -= 2
            recorder.call("broadcast", line=42, state="scheduled")
        else:
            recorder.entries[-2] |= {"state": "scheduled"}

    assert blamed(judged(job(4, program))) == ("rank-skips-collective", 1)


def test_two_groups_in_opposite_order_are_a_circle() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder).call(group="8" if recorder.rank < 2 else "9", line=50, state="scheduled")

    both = {"8": ("a", range(4)), "9": ("b", range(4))}
    verdict = judged(job(4, program, both))
    assert blamed(verdict) == ("collective-order-inversion", 0)
    assert verdict.root is not None
    assert "circle" in verdict.root.message


def test_two_groups_in_one_order_are_blamed_on_no_rank() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder)
        for group in ("8", "9"):
            recorder.call(group=group, line=50, state="scheduled")

    verdict = judged(job(4, program, {"8": ("a", range(4)), "9": ("b", range(4))}))
    assert verdict.root is not None
    assert (verdict.root.subject.rank, verdict.suspects) == (None, ())
    assert "no rank is to blame" in verdict.root.message


def test_a_send_without_its_receive() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder)
        if recorder.rank == 0:
            recorder.transfer("send", 1, state="scheduled")
        else:
            recorder.call(line=50, state="scheduled")

    assert blamed(judged(job(3, program))) == ("p2p-without-partner", 0)


def test_two_receives_from_each_other_have_no_partner() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder).transfer("recv", 1 - recorder.rank, state="scheduled")

    verdict = judged(job(2, program))
    assert verdict.root is not None
    assert verdict.root.cause == "p2p-without-partner"


def test_a_rank_without_a_dump_is_evidence_unless_most_lack_theirs() -> None:
    recorders = job(8, lambda each: trained(each).call(line=50, state="scheduled"))
    verdict = rules.judge(table([each for each in recorders if each.rank != 5]))
    assert blamed(verdict) == ("peer-lost", 5)
    assert "rank 5: no dump" in verdict.unseen
    few = rules.judge(table(recorders[:2]))
    assert few.root is None or few.root.subject.rank is None


def test_a_rank_behind_what_the_others_completed_is_a_straggler() -> None:
    def program(recorder: Recorder) -> None:
        if recorder.rank == 1:
            trained(recorder, 5).call(line=42, state="scheduled")
        else:
            trained(recorder, 8).call(line=50, state="scheduled")

    verdict = judged(job(4, program))
    assert blamed(verdict) == ("straggler", 1)
    assert verdict.suspects == ()


@pytest.mark.parametrize("active_only", [False, True])
def test_a_device_that_stopped_reporting_is_named_beside_the_rank_that_others_wait_for(*, active_only: bool) -> None:
    """Ranks 1 and 3 have calls open that their peers completed; rank 1 alone is missing in the next."""

    def program(recorder: Recorder) -> None:
        silent = recorder.rank in (1, 3)
        trained(recorder)
        for _ in range(4):
            recorder.call(line=50, state="scheduled" if silent else "completed")
        if recorder.rank != 1:
            recorder.call(line=51, state="scheduled")

    verdict = judged(job(4, program), active_only=active_only)
    assert verdict.root is not None
    found = [(item.cause, item.subject.rank) for item in (verdict.root, *verdict.suspects)]
    assert found == [("gpu-hw-fault", 1), ("gpu-hw-fault", 3)]


# ---- nothing is wrong


def healthy(recorder: Recorder) -> None:
    """All that looks odd and is legal."""
    trained(recorder)
    if recorder.rank < 2:
        recorder.transfer("send" if recorder.rank == 0 else "recv", 1 - recorder.rank)
    recorder.call("all_to_all", size=10 + recorder.rank, line=60)
    sizes = {"output_sizes": [[4], [4], [4], [4]] if recorder.rank == 0 else [[]]}
    recorder.call("gather", line=61, **sizes)
    for part in range(2):
        own = {"input_sizes": [[3 + recorder.rank]], "output_sizes": [[3 + part]]}
        recorder.call("_broadcast_oop", inside=True, state="scheduled", line=62, **own)
    recorder.call("ALLGATHER_coalesced", input_sizes=[], output_sizes=[], line=62)
    trained(recorder)


def test_what_is_legal_is_no_finding() -> None:
    assert judged(job(4, healthy)).root is None


@pytest.mark.parametrize("last", [3, 7, 11])
def test_a_ring_that_was_written_over_is_no_finding(last: int) -> None:
    """Ranks that send and receive have more entries than the others, so that other calls are left in their rings."""

    def program(recorder: Recorder) -> None:
        for _ in range(5):
            healthy(recorder)

    assert judged(job(4, program), last).root is None


def test_a_completion_that_was_not_yet_noticed_is_no_finding() -> None:
    verdict = judged(
        job(4, lambda each: trained(each).call(line=50, state="scheduled" if each.rank == 2 else "completed"))
    )
    assert verdict.root is None
    assert any("rank 2" in text for text in verdict.unseen)


def test_a_dump_that_was_made_earlier_than_the_others_is_no_finding() -> None:
    """Rank 1 had not come to the last two calls when its dump was made; all calls of all are over."""
    verdict = judged(job(4, lambda each: trained(each, 6 if each.rank == 1 else 8)))
    assert verdict.root is None


def test_a_rank_that_is_behind_is_told_from_dumps_of_open_calls_alone() -> None:
    def program(recorder: Recorder) -> None:
        calls = 5 if recorder.rank == 1 else 8
        trained(recorder, calls).call(line=50 if calls == 8 else 42, state="scheduled")

    assert blamed(judged(job(4, program), active_only=True)) == ("straggler", 1)


def test_the_last_call_in_flight_everywhere_blames_nobody() -> None:
    verdict = judged(job(4, lambda each: trained(each).call(line=50, state="scheduled")))
    assert blamed(verdict) == ("network-fabric-fault", None)
    assert verdict.root is not None
    assert verdict.root.level is Level.UNKNOWN  # a healthy job looks the same at most moments
    assert "while it was under way" in verdict.root.message


def test_a_call_that_all_are_in_while_they_went_on_elsewhere_stands_still() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder).call(line=50, state="scheduled")
        for _ in range(40):  # a second each
            recorder.call("all_gather", "1")

    verdict = judged(job(4, program, {"1": ("data", range(4))}))
    assert blamed(verdict) == ("network-fabric-fault", None)
    assert verdict.root is not None
    assert verdict.root.level is Level.ERROR


def test_rings_without_a_call_in_common_are_not_compared() -> None:
    """Rank 1 stopped at its third call; the others' rings begin at the fifth."""
    verdict = judged(job(3, lambda each: trained(each, 3 if each.rank == 1 else 8)), last=4)
    assert verdict.root is None or verdict.root.subject.rank == 1


def test_no_dump_at_all_is_no_finding() -> None:
    verdict = rules.judge(dumps.read([piece("x", b"junk")]))
    assert (verdict.root, len(verdict.unseen)) == (None, 1)


# ---- gloo


def as_gloo(recorder: Recorder, *, failed: bool) -> bytes:
    """The dump as gloo writes it: no groups, no states; a call that failed is retired as one that completed is."""
    dump = recorder.dump()
    for each in dump["entries"]:
        over = each["state"] == "completed" or failed
        each |= {"retired": over, "state": "scheduled", "time_discovered_completed_ns": None}
        each |= {"profiling_name": each["profiling_name"].replace("nccl", "gloo")}
    return written(dump | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}})


@pytest.mark.parametrize("failed", [False, True])
def test_on_gloo_a_missing_rank_is_named_before_and_after_the_time_out(*, failed: bool) -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder)
        if recorder.rank != 2:
            recorder.call(line=50, state="scheduled")

    pieces = [piece(f"fr_rank_{each.rank}", as_gloo(each, failed=failed)) for each in job(4, program)]
    assert blamed(rules.judge(dumps.read(pieces))) == ("rank-missing-collective", 2)


def test_on_gloo_it_is_said_that_members_are_not_known() -> None:
    def program(recorder: Recorder) -> None:
        trained(recorder).call(group="8" if recorder.rank < 2 else "9", line=50, state="scheduled")

    recorders = job(4, program, {"8": ("a", range(4)), "9": ("b", range(4))})
    verdict = rules.judge(dumps.read(piece(f"fr_rank_{each.rank}", as_gloo(each, failed=False)) for each in recorders))
    assert verdict.root is not None
    assert (verdict.root.level, verdict.root.subject.rank) == (Level.UNKNOWN, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        ("none", {None}),
        ("away", {"rank-missing-collective"}),
        ("operation", {"mismatched-operation"}),
        ("shape", {"mismatched-shape"}),
    ],
)
def test_what_really_hangs_on_gloo_is_named(fault: str, causes: set[str | None], tmp_path: Path) -> None:
    script = Path(__file__).with_name("hang_on_gloo.py")
    command = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), str(tmp_path), fault], stderr=subprocess.PIPE)
        for rank in range(3)
    ]
    for each in ranks:
        _, said = each.communicate(timeout=100)
        assert each.returncode == 0, said.decode()
    verdict = rules.judge(dumps.read(piece(each.name, each.read_bytes()) for each in tmp_path.glob("trace_rank_?")))
    found = blamed(verdict)
    assert (found[0] if found else None) in causes
    assert fault == "none" or (found is not None and found[1] == 1)

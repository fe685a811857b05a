"""Verdicts over the dumps of many ranks: root cause and rank, and when there is none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.core.findings import Level, Verdict
from holdfast.diagnose.dumps import dump_set, rules
from tests.forked_programs import RunningProgram
from tests.unit.diagnose.dump_factory import written
from tests.unit.diagnose.many_dumps import Recorder, job, piece, table


def judge_dumps(
    recorders: list[Recorder], last: int = 2000, *, active_only: bool = False
) -> Verdict:
    """Return the verdict over the dumps of these ranks, in random order."""
    shuffled = random.Random(3).sample(recorders, len(recorders))
    return rules.judge(table(shuffled, last, active_only=active_only))


def root_of(verdict: Verdict) -> tuple[str, int | None] | None:
    """Return cause and rank of the root."""
    return (verdict.root.cause, verdict.root.subject.rank) if verdict.root else None


def train(recorder: Recorder, calls: int = 6) -> Recorder:
    """Record some completed collectives."""
    for number in range(calls):
        recorder.call(line=41 + number % 2)
    return recorder


def test_missing_rank_is_root_with_its_line_and_the_line_of_the_waiters() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder)
        if recorder.rank != 2:
            recorder.call("broadcast", line=50, state="scheduled")

    verdict = judge_dumps(job(4, program))
    assert root_of(verdict) == ("rank-missing-collective", 2)
    assert verdict.root is not None
    assert "broadcast #7 at train.py:50" in verdict.root.message
    assert "train.py:42" in verdict.root.message
    assert (verdict.root.subject.line, verdict.suspects) == (42, ())
    assert {fact.origin for fact in verdict.root.evidence} == {
        "nccl_trace_rank_0",
        "nccl_trace_rank_2",
    }
    assert verdict.consequences[0].message.startswith("ranks 0-1,3 are blocked in broadcast #7")


def test_verdict_counts_awaited_ranks_beyond_the_limit() -> None:
    verdict = judge_dumps(
        job(
            60,
            lambda each: train(each).call(line=50, state="scheduled") if each.rank < 35 else None,
        )
    )
    assert verdict.root is not None
    assert len(verdict.suspects) == 15
    assert any(text.startswith("ranks 51-59 (9 ranks): awaited too") for text in verdict.unseen)


@pytest.mark.parametrize("guilty", [0, 3])
@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({"name": "all_gather"}, "mismatched-operation"),
        ({"size": 5}, "mismatched-shape"),
        ({"input_dtypes": ["Double"]}, "mismatched-dtype"),
    ],
)
def test_mismatch_is_blamed_on_the_minority(
    guilty: int, odd: dict[str, object], cause: str
) -> None:
    def program(recorder: Recorder) -> None:
        train(recorder)
        recorder.call(
            **({"line": 50, "state": "scheduled"} | (odd if recorder.rank == guilty else {}))
        )

    verdict = judge_dumps(job(4, program))
    assert root_of(verdict) == (cause, guilty)
    assert verdict.suspects == ()


def test_mismatch_without_majority_is_reported_as_tie() -> None:
    verdict = judge_dumps(
        job(4, lambda each: train(each).call(size=4 + each.rank // 2, line=50, state="scheduled"))
    )
    assert verdict.root is not None
    assert (verdict.root.cause, "a tie" in verdict.root.message) == ("mismatched-shape", True)
    assert (verdict.root.subject.rank, verdict.root.subject.line) == (None, 50)


def test_rank_that_skips_a_collective_is_root() -> None:
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

    assert root_of(judge_dumps(job(4, program))) == ("rank-skips-collective", 1)


def test_groups_in_opposite_order_are_a_wait_cycle() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder).call(group="8" if recorder.rank < 2 else "9", line=50, state="scheduled")

    both = {"8": ("a", range(4)), "9": ("b", range(4))}
    verdict = judge_dumps(job(4, program, both))
    assert root_of(verdict) == ("collective-order-inversion", 0)
    assert verdict.root is not None
    assert "wait cycle" in verdict.root.message


def test_groups_in_the_same_order_blame_no_rank() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder)
        for group in ("8", "9"):
            recorder.call(group=group, line=50, state="scheduled")

    verdict = judge_dumps(job(4, program, {"8": ("a", range(4)), "9": ("b", range(4))}))
    assert verdict.root is not None
    assert (verdict.root.subject.rank, verdict.suspects) == (None, ())
    assert "no rank is to blame" in verdict.root.message


def test_send_without_receive_has_no_partner() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder)
        if recorder.rank == 0:
            recorder.transfer("send", 1, state="scheduled")
        else:
            recorder.call(line=50, state="scheduled")

    assert root_of(judge_dumps(job(3, program))) == ("p2p-without-partner", 0)


def test_mutual_receives_have_no_partner() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder).transfer("recv", 1 - recorder.rank, state="scheduled")

    verdict = judge_dumps(job(2, program))
    assert verdict.root is not None
    assert verdict.root.cause == "p2p-without-partner"


def test_missing_dump_is_evidence_unless_most_dumps_are_missing() -> None:
    recorders = job(8, lambda each: train(each).call(line=50, state="scheduled"))
    verdict = rules.judge(table([each for each in recorders if each.rank != 5]))
    assert root_of(verdict) == ("peer-lost", 5)
    assert "rank 5: no dump" in verdict.unseen
    few = rules.judge(table(recorders[:2]))
    assert few.root is None or few.root.subject.rank is None


def test_rank_behind_completed_calls_is_a_straggler() -> None:
    def program(recorder: Recorder) -> None:
        if recorder.rank == 1:
            train(recorder, 5).call(line=42, state="scheduled")
        else:
            train(recorder, 8).call(line=50, state="scheduled")

    verdict = judge_dumps(job(4, program))
    assert root_of(verdict) == ("straggler", 1)
    assert verdict.suspects == ()


@pytest.mark.parametrize("active_only", [False, True])
def test_silent_device_is_reported_beside_the_awaited_rank(*, active_only: bool) -> None:
    """Ranks 1 and 3 have open calls that their peers completed; only rank 1 misses the next."""

    def program(recorder: Recorder) -> None:
        silent = recorder.rank in (1, 3)
        train(recorder)
        for _ in range(4):
            recorder.call(line=50, state="scheduled" if silent else "completed")
        if recorder.rank != 1:
            recorder.call(line=51, state="scheduled")

    verdict = judge_dumps(job(4, program), active_only=active_only)
    assert verdict.root is not None
    found = [(item.cause, item.subject.rank) for item in (verdict.root, *verdict.suspects)]
    assert found == [("gpu-hw-fault", 1), ("gpu-hw-fault", 3)]


# ---- healthy jobs


def healthy(recorder: Recorder) -> None:
    """Record calls that differ legally between ranks."""
    train(recorder)
    if recorder.rank < 2:
        recorder.transfer("send" if recorder.rank == 0 else "recv", 1 - recorder.rank)
    recorder.call("all_to_all", size=10 + recorder.rank, line=60)
    sizes = {"output_sizes": [[4], [4], [4], [4]] if recorder.rank == 0 else [[]]}
    recorder.call("gather", line=61, **sizes)
    for part in range(2):
        own = {"input_sizes": [[3 + recorder.rank]], "output_sizes": [[3 + part]]}
        recorder.call("_broadcast_oop", inside=True, state="scheduled", line=62, **own)
    recorder.call("ALLGATHER_coalesced", input_sizes=[], output_sizes=[], line=62)
    train(recorder)


def test_legal_differences_yield_no_finding() -> None:
    assert judge_dumps(job(4, healthy)).root is None


@pytest.mark.parametrize("last", [3, 7, 11])
def test_overwritten_ring_buffers_yield_no_finding(last: int) -> None:
    """Ranks with transfers have more entries, so their ring buffers hold other calls."""

    def program(recorder: Recorder) -> None:
        for _ in range(5):
            healthy(recorder)

    assert judge_dumps(job(4, program), last).root is None


def test_unreported_completion_yields_no_finding() -> None:
    verdict = judge_dumps(
        job(
            4,
            lambda each: train(each).call(
                line=50, state="scheduled" if each.rank == 2 else "completed"
            ),
        )
    )
    assert verdict.root is None
    assert any("rank 2" in text for text in verdict.unseen)


def test_earlier_dump_yields_no_finding() -> None:
    """Rank 1 wrote its dump before the last two calls; all calls of all ranks are over."""
    verdict = judge_dumps(job(4, lambda each: train(each, 6 if each.rank == 1 else 8)))
    assert verdict.root is None


def test_straggler_is_found_in_dumps_of_open_calls_only() -> None:
    def program(recorder: Recorder) -> None:
        calls = 5 if recorder.rank == 1 else 8
        train(recorder, calls).call(line=50 if calls == 8 else 42, state="scheduled")

    assert root_of(judge_dumps(job(4, program), active_only=True)) == ("straggler", 1)


def test_call_in_flight_on_all_ranks_blames_no_rank() -> None:
    verdict = judge_dumps(job(4, lambda each: train(each).call(line=50, state="scheduled")))
    assert root_of(verdict) == ("network-fabric-fault", None)
    assert verdict.root is not None
    assert verdict.root.level is Level.UNKNOWN  # a healthy job looks the same most of the time
    assert "while the call was in progress" in verdict.root.message


def test_call_with_all_members_is_stuck_if_ranks_advanced_elsewhere() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder).call(line=50, state="scheduled")
        for _ in range(40):  # one second each
            recorder.call("all_gather", "1")

    verdict = judge_dumps(job(4, program, {"1": ("data", range(4))}))
    assert root_of(verdict) == ("network-fabric-fault", None)
    assert verdict.root is not None
    assert verdict.root.level is Level.ERROR


def test_ring_buffers_without_common_calls_are_not_compared() -> None:
    """Rank 1 stopped at its third call; the ring buffers of the others begin at the fifth."""
    verdict = judge_dumps(job(3, lambda each: train(each, 3 if each.rank == 1 else 8)), last=4)
    assert verdict.root is None or verdict.root.subject.rank == 1


def test_unreadable_dumps_yield_no_finding() -> None:
    verdict = rules.judge(dump_set.read_dumps([piece("x", b"junk")]))
    assert (verdict.root, len(verdict.unseen)) == (None, 1)


# ---- gloo


def as_gloo(recorder: Recorder, *, failed: bool) -> bytes:
    """Return the dump as gloo writes it: no groups, no states; failed calls are retired too."""
    dump = recorder.dump()
    for each in dump["entries"]:
        over = each["state"] == "completed" or failed
        each |= {"retired": over, "state": "scheduled", "time_discovered_completed_ns": None}
        each |= {"profiling_name": each["profiling_name"].replace("nccl", "gloo")}
    return written(dump | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}})


@pytest.mark.parametrize("failed", [False, True])
def test_gloo_missing_rank_is_root_before_and_after_the_timeout(*, failed: bool) -> None:
    def program(recorder: Recorder) -> None:
        train(recorder)
        if recorder.rank != 2:
            recorder.call(line=50, state="scheduled")

    pieces = [
        piece(f"fr_rank_{each.rank}", as_gloo(each, failed=failed)) for each in job(4, program)
    ]
    assert root_of(rules.judge(dump_set.read_dumps(pieces))) == ("rank-missing-collective", 2)


def test_gloo_verdict_is_unknown_without_members() -> None:
    def program(recorder: Recorder) -> None:
        train(recorder).call(group="8" if recorder.rank < 2 else "9", line=50, state="scheduled")

    recorders = job(4, program, {"8": ("a", range(4)), "9": ("b", range(4))})
    verdict = rules.judge(
        dump_set.read_dumps(
            piece(f"fr_rank_{each.rank}", as_gloo(each, failed=False)) for each in recorders
        )
    )
    assert verdict.root is not None
    assert (verdict.root.level, verdict.root.subject.rank) == (Level.UNKNOWN, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        pytest.param("none", {None}, marks=pytest.mark.matrix),
        pytest.param("away", {"rank-missing-collective"}, marks=pytest.mark.matrix),
        ("operation", {"mismatched-operation"}),
        pytest.param("shape", {"mismatched-shape"}, marks=pytest.mark.matrix),
    ],
)
def test_real_gloo_hang_is_attributed(fault: str, causes: set[str | None], tmp_path: Path) -> None:
    script = Path(__file__).with_name("hang_on_gloo.py")
    ranks = [
        RunningProgram(script, rank, tmp_path / "store", tmp_path, fault, folder=tmp_path)
        for rank in range(3)
    ]
    for each in ranks:
        done = each.result()
        assert done.returncode == 0, done.stderr
    verdict = rules.judge(
        dump_set.read_dumps(
            piece(each.name, each.read_bytes()) for each in tmp_path.glob("trace_rank_?")
        )
    )
    found = root_of(verdict)
    assert (found[0] if found else None) in causes
    assert fault == "none" or (found is not None and found[1] == 1)

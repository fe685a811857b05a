"""Verdicts from stacks only: which ranks wait, which are stuck elsewhere, and what is not a hang."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Level
from holdfast.core.rank_table import ChildProcess, ProcessState, RankState, SourceLine, ThreadStack
from holdfast.diagnose.stacks import rules as stacks_rules
from holdfast.diagnose.stacks.wait_kinds import WaitKind, classify_stack
from holdfast.watcher.source_context import Guard, SourceContext

TORCH = "/v/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
MAIN = SourceLine("/job/train.py", 90, "main")
STEP = SourceLine("/job/train.py", 41, "train_step")
EVAL = SourceLine("/job/train.py", 77, "evaluate")
TOKENIZE = SourceLine("/job/data.py", 12, "tokenize")
WRAPPER = SourceLine(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper")


def in_call(name: str = "all_reduce", at: SourceLine = STEP) -> tuple[SourceLine, ...]:
    return (SourceLine(C10D, 3252, name), WRAPPER, at, MAIN)


def row(rank: int, *samples: tuple[SourceLine, ...], **more: object) -> RankState:
    twice = samples if len(samples) > 1 else samples * 2
    fields = {
        "life": ProcessState.RUNNING,
        "cpu_share": 0.0,
        "io_bytes": 0,
        "host": "a",
        "pid": 1000 + rank,
    }
    return RankState(
        rank=rank, stacks=tuple(ThreadStack(frames) for frames in twice), **(fields | more)
    )


def judge(*rows: RankState, world_size: int | None = None, **more: object):
    threads = {state.rank: state.stacks[-1:] for state in rows if state.stacks}
    return stacks_rules.judge(rows, threads, world_size=world_size or len(rows), **more)


WAITERS = [row(rank, in_call()) for rank in (0, 1, 3)]


def test_missing_rank_is_root_with_its_line():
    verdict = judge(*WAITERS, row(2, (TOKENIZE, MAIN)))
    root = verdict.root
    assert (root.cause, root.subject.rank, root.subject.file, root.subject.line) == (
        "rank-missing-collective",
        2,
        "/job/data.py",
        12,
    )
    assert "ranks 0-1,3 are blocked in all_reduce at train.py:41" in verdict.consequences[0].message
    assert 0.5 < root.confidence < 0.93  # lower than with trace files


def test_confidence_is_lower_if_ranks_are_missing():
    all_seen = judge(*WAITERS, row(2, (TOKENIZE, MAIN))).root
    some_seen = judge(*WAITERS, row(2, (TOKENIZE, MAIN)), world_size=8)
    assert some_seen.root.confidence < all_seen.confidence
    assert "ranks 4-7: not on the inspected hosts" in some_seen.unseen


def at(rank: int, frames: tuple[SourceLine, ...], seconds: float, **more: object) -> RankState:
    """Return a row with samples ``seconds`` apart."""
    samples = (ThreadStack(frames, time=100.0), ThreadStack(frames, time=100.0 + seconds))
    return replace(row(rank, frames, **more), stacks=samples)


def test_stall_time_is_reported_and_raises_confidence():
    asleep = judge(*WAITERS, at(2, (TOKENIZE, MAIN), 1.0, asleep_s=417.0)).root
    young = judge(*WAITERS, at(2, (TOKENIZE, MAIN), 5.2, asleep_s=0.3)).root
    assert asleep.message.endswith(", for at least 6 min 57 s")
    assert young.message.endswith(", for at least 5.2 s")
    assert young.confidence < asleep.confidence
    waited = [at(rank, in_call(), 1.0, asleep_s=60.0) for rank in (0, 1, 3)]
    assert (
        judge(*waited, at(2, (TOKENIZE, MAIN), 1.0, asleep_s=0.3)).root.confidence
        == asleep.confidence
    )


def test_rank_woken_up_in_a_collective_shows_an_advancing_job():
    woken = row(3, in_call(), woke=True)
    sleeper = row(2, (TOKENIZE, MAIN))
    verdict = judge(*WAITERS[:2], sleeper, woken)
    assert verdict.root is None
    assert any("rank 3: it was woken up" in out.why for out in verdict.ruled_out)
    polls = row(2, (TOKENIZE, MAIN), woke=True)  # polls every second
    assert judge(*WAITERS, polls).root.subject.rank == 2


@pytest.mark.parametrize(
    "slow",
    [
        row(2, (TOKENIZE, MAIN), (SourceLine("/job/data.py", 13, "tokenize"), MAIN)),
        row(2, (TOKENIZE, MAIN), cpu_share=0.97),
        row(2, (TOKENIZE, MAIN), io_bytes=1 << 20),
        row(2, (SourceLine(f"{TORCH}/serialization.py", 900, "save"), TOKENIZE, MAIN)),
    ],
    ids=["its stack changes", "it computes", "it moves data", "it saves"],
)
def test_slow_rank_yields_no_finding(slow):
    verdict = judge(*WAITERS, slow)
    assert verdict.root is None
    assert "rank 2" in next(
        out.why for out in verdict.ruled_out if out.cause == "rank-missing-collective"
    )


def test_newly_waiting_rank_shows_an_advancing_job():
    arrived = row(3, (STEP, MAIN), in_call())
    assert judge(*WAITERS[:2], arrived, row(2, (TOKENIZE, MAIN))).root is None


def test_changing_stacks_yield_no_finding():
    moving = [row(rank, (STEP, MAIN), (EVAL, MAIN), cpu_share=0.9) for rank in range(4)]
    assert judge(*moving).root is None


def test_stopped_rank_is_root_even_in_a_collective():
    root = judge(*WAITERS, row(2, in_call(), life=ProcessState.STOPPED)).root
    assert (root.cause, root.subject.rank) == ("rank-stopped", 2)


def test_dead_dataloader_worker_is_root():
    loader = SourceLine(f"{TORCH}/utils/data/dataloader.py", 1200, "_try_get_data")
    root = judge(
        *WAITERS,
        row(2, (loader, MAIN), children=(ChildProcess(77, "pt_data_worker", alive=False),)),
    ).root
    assert (root.cause, root.confidence) == ("dataloader-worker-died", 0.9)


def test_all_ranks_in_one_collective_suggest_the_network_with_low_confidence():
    rows = [row(rank, in_call()) for rank in range(4)]
    assert judge(*rows).root.cause == "collective-incomplete"  # one host
    root = judge(*(replace(each, host=f"host{each.rank}") for each in rows)).root
    assert root.cause == "network-fabric-fault"
    assert root.confidence <= 0.4


def test_busy_ranks_in_one_collective_yield_no_finding():
    assert judge(*(row(rank, in_call(), cpu_share=0.4) for rank in range(4))).root is None


def test_root_is_unknown_if_all_sampled_ranks_wait():
    root = judge(*(row(rank, in_call()) for rank in range(4)), world_size=8).root
    assert root.level == Level.UNKNOWN
    assert "inspect ranks 4-7" in root.message


def test_rank_without_process_is_root():
    root = judge(*WAITERS, world_size=4, gone=(2,)).root
    assert (root.cause, root.subject.rank) == ("peer-lost", 2)


def guarded(place: SourceLine, line: int, branch: str = "body") -> dict[SourceLine, SourceContext]:
    return {
        place: SourceContext(
            place.function, 70, "", guards=(Guard(line, "rank == 0", branch, rank_dependent=True),)
        )
    }


def test_guarded_collective_is_found_in_the_source():
    odd = row(2, in_call("broadcast", EVAL))
    root = judge(*WAITERS, odd, source=guarded(EVAL, 75)).root
    assert (root.cause, root.subject.rank, root.subject.line) == ("rank-guarded-collective", 2, 77)
    assert judge(*WAITERS, odd).root.cause == "collective-mismatch"


def test_two_branches_of_one_rank_check_are_an_order_inversion():
    source = guarded(EVAL, 75) | guarded(STEP, 75, "orelse")
    assert (
        judge(*WAITERS, row(2, in_call("all_reduce", EVAL)), source=source).root.cause
        == "collective-order-inversion"
    )


def test_divergence_without_majority_is_reported_as_tie():
    rows = [row(rank, in_call(at=STEP if rank < 2 else EVAL)) for rank in range(4)]
    root = judge(*rows).root
    assert "a tie" in root.message
    assert root.confidence < 0.3


def test_send_without_receive_has_no_partner():
    root = judge(*WAITERS, row(2, in_call("send", EVAL))).root
    assert (root.cause, root.subject.rank) == ("p2p-without-partner", 2)


def test_all_ranks_asleep_outside_collectives_are_a_warning():
    root = judge(*(row(rank, (TOKENIZE, MAIN)) for rank in range(4))).root
    assert (root.cause, root.level) == ("stalled-outside-collectives", Level.WARNING)


def test_outlier_is_root_without_collectives():
    root = judge(*(row(rank, (TOKENIZE if rank == 2 else STEP, MAIN)) for rank in range(4))).root
    assert (root.subject.rank, root.level) == (2, Level.ERROR)
    assert root.confidence <= 0.5


def test_single_sample_lowers_confidence_and_a_running_rank_advances():
    waiting = [row(rank, in_call(), cpu_share=None, life=ProcessState.UNKNOWN) for rank in (0, 1)]
    once = replace(
        row(2, (TOKENIZE, MAIN), cpu_share=None, life=ProcessState.UNKNOWN),
        stacks=(ThreadStack((TOKENIZE, MAIN)),),
    )
    twice = judge(*waiting, row(2, (TOKENIZE, MAIN))).root
    root = judge(*waiting, once).root
    assert (root.subject.rank, twice.subject.rank) == (2, 2)
    assert root.confidence < twice.confidence
    assert judge(*waiting, once, running={2}).root is None
    assert judge(*waiting, once, running={0}).root is not None


LOAD = SourceLine("/job/kernels.py", 9, "load_kernels")
BUILDS = (SourceLine(f"{TORCH}/utils/cpp_extension.py", 2200, "_jit_compile"), LOAD, MAIN)
BATON = (SourceLine(f"{TORCH}/utils/file_baton.py", 57, "wait"), *BUILDS)


def test_stale_build_lock_is_root():
    for rows in ([row(rank, BATON) for rank in range(4)], [*WAITERS, row(2, BATON)]):
        root = judge(*rows).root
        assert (root.cause, root.subject.line) == ("stale-build-lock", LOAD.line)
    assert root.subject.rank == 2


def test_waiting_for_a_building_rank_yields_no_finding():
    assert judge(row(0, BUILDS), *(row(rank, BATON) for rank in range(1, 4))).root is None


def test_remedy_contains_the_process_id():
    root = judge(*WAITERS, row(2, (TOKENIZE, MAIN), life=ProcessState.STOPPED)).root
    assert root.cause == "rank-stopped"
    assert [remedy.command for remedy in root.remedies][:2] == [
        "kill -CONT 1002",
        "grep TracerPid /proc/1002/status",
    ]


def test_without_stacks_the_reason_is_unseen():
    rows = [
        RankState(rank=rank, life=ProcessState.RUNNING, unseen=("no leave to trace",))
        for rank in range(2)
    ]
    verdict = judge(*rows)
    assert verdict.root is None
    assert "ranks 0-1: no leave to trace" in verdict.unseen


@pytest.mark.parametrize(
    ("frames", "kind", "call"),
    [
        (in_call("all_gather_object"), WaitKind.COLLECTIVE, "all_gather_object"),
        (
            (SourceLine(C10D, 3252, "all_gather"), *in_call("all_gather_object")),
            WaitKind.COLLECTIVE,
            "all_gather_object",
        ),
        (in_call("irecv"), WaitKind.POINT_TO_POINT, "irecv"),
        (
            (SourceLine(C10D, 9, "_store_based_barrier"), *in_call("init_process_group")),
            WaitKind.STORE,
            "init_process_group",
        ),
        (
            (SourceLine(f"{TORCH}/autograd/graph.py", 5, "_engine_run_backward"), STEP),
            WaitKind.BACKWARD,
            "the backward pass",
        ),
        (
            (SourceLine(f"{TORCH}/cuda/__init__.py", 5, "synchronize"), STEP),
            WaitKind.DEVICE,
            "a wait for the GPU",
        ),
    ],
)
def test_wait_is_classified_by_frames(frames, kind, call):
    wait = classify_stack(ThreadStack(frames), {})
    assert (wait.kind, wait.call, wait.site) == (kind, call, STEP)


def test_computing_in_a_wrapped_model_is_not_a_wait():
    linear = SourceLine(f"{TORCH}/nn/modules/linear.py", 130, "forward")
    wrapped = SourceLine(f"{TORCH}/nn/parallel/distributed.py", 1700, "forward")
    assert classify_stack(ThreadStack((linear, wrapped, STEP)), {}) is None
    assert classify_stack(ThreadStack((wrapped, STEP)), {}).kind == WaitKind.COLLECTIVE


def test_wait_below_a_user_line_is_classified_by_its_text():
    source = {STEP: SourceContext("train_step", 40, "    total += loss.item()")}
    assert classify_stack(ThreadStack((STEP, MAIN)), source).kind == WaitKind.DEVICE
    assert classify_stack(ThreadStack((STEP, MAIN)), {}) is None

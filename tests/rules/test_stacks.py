"""Verdicts from stacks alone: who waits, who is elsewhere, and what does not count as a hang."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.facts.ranks import Child, Life, Place, RankState, Stack
from holdfast.facts.source import Guard, Surroundings
from holdfast.findings import Level
from holdfast.rules import stacks
from holdfast.rules.stack_waits import Kind, of_stack

TORCH = "/v/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
MAIN = Place("/job/train.py", 90, "main")
STEP = Place("/job/train.py", 41, "train_step")
EVAL = Place("/job/train.py", 77, "evaluate")
TOKENIZE = Place("/job/data.py", 12, "tokenize")
WRAPPER = Place(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper")


def in_call(name: str = "all_reduce", at: Place = STEP) -> tuple[Place, ...]:
    return (Place(C10D, 3252, name), WRAPPER, at, MAIN)


def row(rank: int, *samples: tuple[Place, ...], **more: object) -> RankState:
    twice = samples if len(samples) > 1 else samples * 2
    fields = {"life": Life.RUNNING, "cpu_share": 0.0, "io_bytes": 0, "host": "a", "pid": 1000 + rank}
    return RankState(rank=rank, stacks=tuple(Stack(frames) for frames in twice), **(fields | more))


def judge(*rows: RankState, world_size: int | None = None, **more: object):
    threads = {state.rank: state.stacks[-1:] for state in rows if state.stacks}
    return stacks.judge(rows, threads, world_size=world_size or len(rows), **more)


WAITERS = [row(rank, in_call()) for rank in (0, 1, 3)]


def test_the_rank_that_does_not_come_is_named_with_its_line():
    verdict = judge(*WAITERS, row(2, (TOKENIZE, MAIN)))
    root = verdict.root
    assert (root.cause, root.subject.rank, root.subject.file, root.subject.line) == (
        "rank-missing-collective", 2, "/job/data.py", 12,
    )  # fmt: skip
    assert "ranks 0-1,3 wait in all_reduce at train.py:41" in verdict.consequences[0].message
    assert 0.5 < root.confidence < 0.93  # less than boxes would allow


def test_less_is_believed_where_ranks_are_missing():
    all_seen = judge(*WAITERS, row(2, (TOKENIZE, MAIN))).root
    some_seen = judge(*WAITERS, row(2, (TOKENIZE, MAIN)), world_size=8)
    assert some_seen.root.confidence < all_seen.confidence
    assert "ranks 4-7: not on the hosts that were looked at" in some_seen.unseen


def at(rank: int, frames: tuple[Place, ...], seconds: float, **more: object) -> RankState:
    """A row with samples ``seconds`` apart."""
    samples = (Stack(frames, time=100.0), Stack(frames, time=100.0 + seconds))
    return replace(row(rank, frames, **more), stacks=samples)


def test_for_how_long_it_stands_still_is_said_and_counts():
    asleep = judge(*WAITERS, at(2, (TOKENIZE, MAIN), 1.0, asleep_s=417.0)).root
    young = judge(*WAITERS, at(2, (TOKENIZE, MAIN), 5.2, asleep_s=0.3)).root
    assert asleep.message.endswith(", for at least 6 min 57 s")
    assert young.message.endswith(", for at least 5.2 s")
    assert young.confidence < asleep.confidence
    waited = [at(rank, in_call(), 1.0, asleep_s=60.0) for rank in (0, 1, 3)]
    assert judge(*waited, at(2, (TOKENIZE, MAIN), 1.0, asleep_s=0.3)).root.confidence == asleep.confidence


def test_one_that_was_woken_up_in_a_collective_shows_a_job_that_runs():
    woken = row(3, in_call(), woke=True)
    sleeper = row(2, (TOKENIZE, MAIN))
    verdict = judge(*WAITERS[:2], sleeper, woken)
    assert verdict.root is None
    assert any("rank 3: it was woken up" in out.why for out in verdict.ruled_out)
    polls = row(2, (TOKENIZE, MAIN), woke=True)  # it looks every second whether what it waits for is there
    assert judge(*WAITERS, polls).root.subject.rank == 2


@pytest.mark.parametrize(
    "slow",
    [
        row(2, (TOKENIZE, MAIN), (Place("/job/data.py", 13, "tokenize"), MAIN)),
        row(2, (TOKENIZE, MAIN), cpu_share=0.97),
        row(2, (TOKENIZE, MAIN), io_bytes=1 << 20),
        row(2, (Place(f"{TORCH}/serialization.py", 900, "save"), TOKENIZE, MAIN)),
    ],
    ids=["its stack changes", "it computes", "it moves data", "it saves"],
)
def test_a_rank_that_is_slow_but_alive_is_no_finding(slow):
    verdict = judge(*WAITERS, slow)
    assert verdict.root is None
    assert "rank 2" in next(out.why for out in verdict.ruled_out if out.cause == "rank-missing-collective")


def test_who_has_only_just_come_to_wait_shows_a_job_that_runs():
    arrived = row(3, (STEP, MAIN), in_call())
    assert judge(*WAITERS[:2], arrived, row(2, (TOKENIZE, MAIN))).root is None


def test_all_elsewhere_and_changing_is_no_finding():
    moving = [row(rank, (STEP, MAIN), (EVAL, MAIN), cpu_share=0.9) for rank in range(4)]
    assert judge(*moving).root is None


def test_a_stopped_rank_is_named_even_inside_the_collective():
    root = judge(*WAITERS, row(2, in_call(), life=Life.STOPPED)).root
    assert (root.cause, root.subject.rank) == ("rank-stopped", 2)


def test_a_loader_whose_worker_is_gone_is_told_from_other_waits():
    loader = Place(f"{TORCH}/utils/data/dataloader.py", 1200, "_try_get_data")
    root = judge(*WAITERS, row(2, (loader, MAIN), children=(Child(77, "pt_data_worker", alive=False),))).root
    assert (root.cause, root.confidence) == ("dataloader-worker-died", 0.9)


def test_all_in_one_collective_points_at_the_transport_with_little_confidence():
    root = judge(*(row(rank, in_call()) for rank in range(4))).root
    assert root.cause == "network-fabric-fault"
    assert root.confidence <= 0.4


def test_all_in_one_collective_and_at_work_is_no_finding():
    assert judge(*(row(rank, in_call(), cpu_share=0.4) for rank in range(4))).root is None


def test_all_that_are_seen_wait_and_others_are_not_seen():
    root = judge(*(row(rank, in_call()) for rank in range(4)), world_size=8).root
    assert root.level == Level.UNKNOWN
    assert "look at ranks 4-7" in root.message


def test_a_rank_whose_process_is_gone_is_the_one_waited_for():
    root = judge(*WAITERS, world_size=4, gone=(2,)).root
    assert (root.cause, root.subject.rank) == ("peer-lost", 2)


def guarded(place: Place, line: int, branch: str = "body") -> dict[Place, Surroundings]:
    return {
        place: Surroundings(place.function, 70, "", guards=(Guard(line, "rank == 0", branch, rank_dependent=True),))
    }


def test_a_collective_under_a_test_of_the_rank_is_told_from_the_source():
    odd = row(2, in_call("broadcast", EVAL))
    root = judge(*WAITERS, odd, source=guarded(EVAL, 75)).root
    assert (root.cause, root.subject.rank, root.subject.line) == ("rank-guarded-collective", 2, 77)
    assert judge(*WAITERS, odd).root.cause == "collective-mismatch"


def test_two_branches_of_one_test_are_no_guarded_collective():
    source = guarded(EVAL, 75) | guarded(STEP, 75, "orelse")
    assert (
        judge(*WAITERS, row(2, in_call("all_reduce", EVAL)), source=source).root.cause == "collective-order-inversion"
    )


def test_a_tie_is_called_a_tie():
    rows = [row(rank, in_call(at=STEP if rank < 2 else EVAL)) for rank in range(4)]
    root = judge(*rows).root
    assert "a tie" in root.message
    assert root.confidence < 0.3


def test_a_send_that_nobody_receives():
    root = judge(*WAITERS, row(2, in_call("send", EVAL))).root
    assert (root.cause, root.subject.rank) == ("p2p-without-partner", 2)


def test_all_asleep_at_one_line_outside_of_any_collective_is_a_warning_at_most():
    root = judge(*(row(rank, (TOKENIZE, MAIN)) for rank in range(4))).root
    assert (root.cause, root.level) == ("stalled-outside-collectives", Level.WARNING)


def test_the_one_that_stands_apart_is_named_where_nobody_is_seen_in_a_collective():
    root = judge(*(row(rank, (TOKENIZE if rank == 2 else STEP, MAIN)) for rank in range(4))).root
    assert (root.subject.rank, root.level) == (2, Level.ERROR)
    assert root.confidence <= 0.5


def test_one_look_is_believed_less_and_one_that_runs_is_at_work():
    waiting = [row(rank, in_call(), cpu_share=None, life=Life.UNKNOWN) for rank in (0, 1)]
    once = replace(row(2, (TOKENIZE, MAIN), cpu_share=None, life=Life.UNKNOWN), stacks=(Stack((TOKENIZE, MAIN)),))
    twice = judge(*waiting, row(2, (TOKENIZE, MAIN))).root
    root = judge(*waiting, once).root
    assert (root.subject.rank, twice.subject.rank) == (2, 2)
    assert root.confidence < twice.confidence
    assert judge(*waiting, once, running={2}).root is None
    assert judge(*waiting, once, running={0}).root is not None


LOAD = Place("/job/kernels.py", 9, "load_kernels")
BUILDS = (Place(f"{TORCH}/utils/cpp_extension.py", 2200, "_jit_compile"), LOAD, MAIN)
BATON = (Place(f"{TORCH}/utils/file_baton.py", 57, "wait"), *BUILDS)


def test_a_lock_that_nobody_holds_is_named_where_all_wait_for_it_and_where_one_does():
    for rows in ([row(rank, BATON) for rank in range(4)], [*WAITERS, row(2, BATON)]):
        root = judge(*rows).root
        assert (root.cause, root.subject.line) == ("stale-build-lock", LOAD.line)
    assert root.subject.rank == 2


def test_who_waits_for_a_rank_that_builds_is_in_no_trouble():
    assert judge(row(0, BUILDS), *(row(rank, BATON) for rank in range(1, 4))).root is None


def test_the_remedy_has_the_number_of_the_process():
    root = judge(*WAITERS, row(2, (TOKENIZE, MAIN), life=Life.STOPPED)).root
    assert root.cause == "rank-stopped"
    assert [remedy.command for remedy in root.remedies][:2] == ["kill -CONT 1002", "grep TracerPid /proc/1002/status"]


def test_nothing_seen_gives_no_finding_and_says_why():
    rows = [RankState(rank=rank, life=Life.RUNNING, unseen=("no leave to trace",)) for rank in range(2)]
    verdict = judge(*rows)
    assert verdict.root is None
    assert "ranks 0-1: no leave to trace" in verdict.unseen


@pytest.mark.parametrize(
    ("frames", "kind", "call"),
    [
        (in_call("all_gather_object"), Kind.COLLECTIVE, "all_gather_object"),
        ((Place(C10D, 3252, "all_gather"), *in_call("all_gather_object")), Kind.COLLECTIVE, "all_gather_object"),
        (in_call("irecv"), Kind.POINT_TO_POINT, "irecv"),
        ((Place(C10D, 9, "_store_based_barrier"), *in_call("init_process_group")), Kind.STORE, "init_process_group"),
        ((Place(f"{TORCH}/autograd/graph.py", 5, "_engine_run_backward"), STEP), Kind.BACKWARD, "the backward pass"),
        ((Place(f"{TORCH}/cuda/__init__.py", 5, "synchronize"), STEP), Kind.DEVICE, "a wait for the GPU"),
    ],
)
def test_what_a_stack_waits_in(frames, kind, call):
    wait = of_stack(Stack(frames), {})
    assert (wait.kind, wait.call, wait.place) == (kind, call, STEP)


def test_computing_inside_of_a_wrapped_model_is_no_wait():
    linear = Place(f"{TORCH}/nn/modules/linear.py", 130, "forward")
    wrapped = Place(f"{TORCH}/nn/parallel/distributed.py", 1700, "forward")
    assert of_stack(Stack((linear, wrapped, STEP)), {}) is None
    assert of_stack(Stack((wrapped, STEP)), {}).kind == Kind.COLLECTIVE


def test_a_wait_behind_a_line_of_the_users_is_read_from_the_line():
    source = {STEP: Surroundings("train_step", 40, "    total += loss.item()")}
    assert of_stack(Stack((STEP, MAIN)), source).kind == Kind.DEVICE
    assert of_stack(Stack((STEP, MAIN)), {}) is None

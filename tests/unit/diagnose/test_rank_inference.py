"""Ranks in messages and in lists of missing ranks; what is never taken for a rank."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.findings import Finding
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs.rank_forms import rank_in_message
from holdfast.diagnose.logs.reader import read_logs

RANKS = st.integers(0, 99_999)
#: Forms in which libraries write the rank of the writer.
OWN = (
    "[Rank {}] Uncaught error",
    "[rank{}]: boom",
    "worker failed, rank={}",
    "worker failed (rank: {})",
    'error: {{"rank": {}, "what": "x"}}',
    "global_rank={} raised",
    "(PID:927000, Device:3, RankID:{}) ERR02200",
    "[util.py:158, rank={}] Uncaught error",
    "NCCL communicator was aborted on rank {}.",
)
#: Numbers that are not the writer's rank.
OTHERS = (
    "GPU {} has a total capacity of 40 GiB",
    "cuda:{} is full",
    "node-{} went away",
    "worker-{} was lost",
    "local_rank: {} (pid: 81)",
    "tp_rank={}",
    "lora_rank={}",
    "LoRA rank: {}",
    "received nothing from rank {}",
    "a tensor of rank {}",
    "expected rank {} for the input",
)


def root_of(**files: str) -> Finding | None:
    """Return the root cause over files, whose names have ``__`` for a dot."""
    return judge(
        read_logs(
            EvidenceFile(
                name.replace("__", "."),
                EvidenceKind.LOG,
                len(text),
                lambda text=text: io.BytesIO(text.encode()),
            )
            for name, text in files.items()
        )
    ).root


def timed_out(rank: int, work: int = 700) -> str:
    """Return the watchdog's line of a rank that waited."""
    return (
        f"[rank{rank}]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={work}, OpType=ALLREDUCE, NumelIn=8, "
        "NumelOut=8, Timeout(ms)=600000) ran for 600017 milliseconds before timing out.\n"
    )


@pytest.mark.parametrize("form", OWN)
@given(rank=RANKS)
def test_a_message_names_the_rank_of_its_writer(form: str, rank: int) -> None:
    assert rank_in_message(form.format(rank)) == rank


@pytest.mark.parametrize("form", OTHERS)
@given(number=RANKS)
def test_another_number_is_no_rank(form: str, number: int) -> None:
    assert rank_in_message(form.format(number)) is None


@given(st.sets(RANKS, min_size=2, max_size=4))
def test_a_message_about_several_ranks_names_none(ranks: set[int]) -> None:
    assert rank_in_message(", ".join(f"rank={rank}" for rank in ranks)) is None


@given(st.sets(st.integers(0, 63), min_size=1, max_size=5))
def test_the_lowest_listed_rank_is_blamed_and_all_are_named(ranks: set[int]) -> None:
    listed = sorted(ranks)
    root = root_of(job__log=f"allreduce.w [missing ranks: {', '.join(map(str, listed))}]\n")
    assert root is not None
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", listed[0])
    assert all(str(rank) in root.message or len(listed) > 2 for rank in listed)


def test_a_stall_that_ended_is_no_failure() -> None:
    stall = "allreduce.w [missing ranks: 0]\n"
    steps = "".join(f"step {step}/90 loss 1.0\n" for step in range(4))
    assert root_of(job__log=stall + steps) is None


@given(st.integers(0, 7))
def test_a_waiting_rank_alone_accuses_nobody(rank: int) -> None:
    for name in (f"rank_{rank}__log", "job__log"):
        root = root_of(**{name: timed_out(rank)})
        assert root is not None
        assert root.subject.rank is None


@given(st.sets(st.integers(0, 7), min_size=1, max_size=7))
def test_the_missing_rank_is_never_one_that_waited(ranks: set[int]) -> None:
    root = root_of(job__log="world_size=8\n" + "".join(timed_out(rank) for rank in sorted(ranks)))
    assert root is not None
    assert root.subject.rank not in ranks
    if len(ranks) == 7:
        assert root.subject.rank == next(iter(set(range(8)) - ranks))


def test_absent_files_of_ranks_accuse_nobody_without_the_world_size() -> None:
    logs = {f"rank_{rank}__log": timed_out(rank) for rank in (0, 1, 3)}
    root = root_of(**logs)
    assert root is not None
    assert root.subject.rank is None
    root = root_of(**logs | {"launch__log": "world_size=4\n"})
    assert root is not None
    assert root.subject.rank == 2


def test_the_local_rank_of_a_command_is_the_rank_on_one_node() -> None:
    died = "CalledProcessError: Command '['python', 'fit.py', '--local_rank=7']' died with <Signals.SIGSEGV: 11>.\n"
    root = root_of(job__log=died)
    assert root is not None
    assert (root.cause, root.subject.rank) == ("segfault-in-worker", 7)


def test_ranks_that_wait_in_the_store_are_not_the_missing_one() -> None:
    log = "".join(
        f"[rank{rank}]: RuntimeError: Timed out initializing process group in store based barrier "
        f"on rank: {rank}, for key: store_based_barrier_key:1 (world_size=4, worker_count=3)\n"
        for rank in (0, 1, 3)
    )
    root = root_of(job__log=log)
    assert root is not None
    assert (root.cause, root.subject.rank) == ("master-unreachable", 2)
    root = root_of(rank_1__log=log.splitlines()[1])
    assert root is not None
    assert root.subject.rank is None


@pytest.mark.parametrize(
    "prefix",
    [
        "[3]<stderr>:",
        "rank 3 | ",
        "<rank 3> ",
        "(rank 3) ",
        "[global_rank=3] ",
        "2026-02-03 04:05:06,789: rank3[914][MainThread]: ERROR: fit: ",
        "2026-02-03 04:05:06.789 | ERROR | rank=3 | ",
        "2026-02-03 04:05:06,789 - rank 3 - ERROR - ",
        "[NeMo E 2026-02-03 04:05:06 trainer:349 rank:3] ",
    ],
)
def test_the_rank_in_a_prefix_of_any_logger(prefix: str) -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "fit.py", line 4, in f',
        "ValueError: bad",
    ]
    log = "".join(f"{prefix}{line}\n" for line in trace)
    assert root_rank(log) == 3
    assert root_rank(log.replace("rank", "local rank")) in (
        None,
        3 if "rank" not in prefix else None,
    )


def root_rank(log: str) -> int | None:
    piece = EvidenceFile("a.log", EvidenceKind.LOG, len(log), lambda: io.BytesIO(log.encode()))
    root = judge(read_logs([piece])).root
    assert root is not None
    return root.subject.rank

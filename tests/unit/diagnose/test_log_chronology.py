"""Which of several failures in logs came first; the others are echoes, effects or were overcome."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.findings import Verdict
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs.reader import read_logs

START = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
#: Seconds after the start, rank, message.
Entry = tuple[float, int, str]

TIMEOUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=167, OpType=ALLREDUCE, "
    "NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600017 milliseconds before timing out."
)
ABORT = "To avoid data inconsistency, we are taking the entire process down."
LAUNCHER_ENDS = "W0203 04:55:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 81 closing signal SIGTERM"
FILLER = "closing the logger"


def status(enqueued: int) -> str:
    return f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: 166."


def trace(error: str, file: str = "/job/train.py") -> list[str]:
    return [
        "Traceback (most recent call last):",
        f'  File "{file}", line 41, in step',
        "    use(x)",
        error,
    ]


def steps(first: int, last: int, *, rank: int = 0, start_s: float = 0.0) -> list[Entry]:
    return [(start_s + number, rank, f"step {number} loss 2.5") for number in range(first, last)]


def write(entries: Sequence[Entry], shift_s: float = 0.0) -> str:
    """Return a log in which each line has a time and a rank."""
    return "".join(
        f"{(START + timedelta(seconds=at + shift_s)):%Y-%m-%d %H:%M:%S,%f} [rank{rank}]: {text}\n"
        for at, rank, text in entries
    )


def write_plain(entries: Sequence[Entry]) -> str:
    return "".join(f"[rank{rank}]: {text}\n" for _, rank, text in entries)


def verdict(logs: dict[str, str]) -> Verdict:
    pieces = [
        EvidenceFile(name, EvidenceKind.LOG, len(text), lambda text=text: io.BytesIO(text.encode()))
        for name, text in logs.items()
    ]
    return judge(read_logs(pieces))


def root_of(logs: dict[str, str]) -> tuple[str, int | None]:
    root = verdict(logs).root
    return ("", None) if root is None else (root.cause, root.subject.rank)


def causes_of(*lines: str) -> list[str]:
    found = verdict({"job.log": "".join(f"{line}\n" for line in lines)})
    return [found.root.cause if found.root else ""]


# ---- single logs


def test_an_exception_after_the_ranks_own_abort_is_an_echo() -> None:
    waiting = [f"[rank0]: {text}" for text in (TIMEOUT, status(167), ABORT)]
    missing = [f"[rank1]: {status(166)}"]
    late = [f"[rank0]: {text}" for text in [FILLER] * 9 + trace("KeyError: 'model'")]
    found = verdict({"job.log": "\n".join([*waiting, *missing, *late])})
    assert found.root is not None
    assert (found.root.cause, found.root.subject.rank) == ("rank-missing-collective", 1)
    assert "python-exception-on-one-rank" in {one.cause for one in found.consequences}


def test_an_exception_of_another_rank_than_the_aborted_one_is_the_root() -> None:
    lines = [f"[rank0]: {text}" for text in (TIMEOUT, ABORT, *[FILLER] * 9)]
    lines += [f"[rank1]: {text}" for text in trace("KeyError: 'model'")]
    assert causes_of(*lines) == ["python-exception-on-one-rank"]


def test_the_text_of_the_abort_itself_is_its_reason() -> None:
    lines = ("terminate called after throwing an instance of 'std::runtime_error'",)
    reason = "  what():  NCCL error: unhandled system error, NCCL version 2.21.5"
    assert causes_of(*lines, reason) == ["network-interface-wrong"]


@pytest.mark.parametrize(
    "end",
    [
        LAUNCHER_ENDS,
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
        "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD",
    ],
)
def test_errors_after_the_launcher_ended_the_ranks_are_echoes(end: str) -> None:
    first = [f"[rank2]: {line}" for line in trace("ValueError: bad batch")]
    late = [f"[rank0]: {line}" for line in trace("OSError: [Errno 28] No space left on device")]
    late.append("[rank0]: RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.")
    found = verdict({"job.log": "\n".join([*first, end, *late])})
    assert found.root is not None
    assert (found.root.cause, found.root.subject.rank) == ("python-exception-on-one-rank", 2)


def test_an_error_after_the_launchers_end_is_the_root_if_no_other_is_known() -> None:
    late = [f"[rank2]: {line}" for line in trace("ValueError: bad batch")]
    assert causes_of(LAUNCHER_ENDS, *late) == ["python-exception-on-one-rank"]
    lost = "[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:4711"
    assert causes_of(lost, LAUNCHER_ENDS, *late) == ["python-exception-on-one-rank"]


def test_exceptions_after_a_preemption_are_echoes() -> None:
    end = "slurmstepd: error: *** JOB 811 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE TO PREEMPTION ***"
    late = [f"[rank0]: {line}" for line in trace("RuntimeError: could not save")]
    assert causes_of(end, *late) == ["signal-sigterm-preempted"]


def test_a_fault_before_further_steps_was_overcome() -> None:
    warning = "wandb: ERROR OSError: [Errno 28] No space left on device"
    before, after = (write_plain(steps(*span)).splitlines() for span in ((1, 4), (4, 9)))
    failure = [f"[rank1]: {line}" for line in trace("ValueError: bad batch")]
    assert causes_of(*before, warning, *after, *failure) == ["python-exception-on-one-rank"]
    exit_code = "E0203 04:05:07.000000 77 api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 82) of binary: python"
    best_known = causes_of(*before, warning, *after, exit_code)
    assert best_known == ["checkpoint-folder-unusable"], "no other line has a reason"


def test_steps_of_a_buffer_after_a_traceback_do_not_hide_it() -> None:
    failure = [f"[rank1]: {line}" for line in trace("ValueError: bad batch")]
    flushed = write_plain(steps(1, 9, rank=1)).splitlines()
    lost = "[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:4711"
    assert causes_of(*failure, *flushed, lost) == ["python-exception-on-one-rank"]


# ---- several logs


@pytest.mark.parametrize("shift_s", [0.0, 45.0, 3600.0, -8 * 3600.0])
def test_clocks_are_aligned_by_common_steps(shift_s: float) -> None:
    """Rank 1 raised a minute before rank 0."""
    rank0 = [*steps(1, 9), (99.0, 0, "Traceback (most recent call last):")]
    rank0 += [(99.0, 0, text) for text in trace("KeyError: 'loss'")[1:]]
    rank1 = [*steps(1, 9, rank=1)]
    rank1 += [(30.0, 1, text) for text in trace("ValueError: bad batch")]
    logs = {"a.log": write(rank0), "b.log": write(rank1, shift_s)}
    assert root_of(logs) == ("python-exception-on-one-rank", 1)
    later = {"a.log": write(rank0, shift_s), "b.log": write(rank1)}
    assert root_of(later) == ("python-exception-on-one-rank", 1)


# ---- properties

#: Rank 2 did not enter the collective, and the others abort.
HANG = {
    rank: [
        *steps(1, 5, rank=rank),
        *(
            [(700.0, rank, TIMEOUT), (700.1, rank, status(167)), (700.2, rank, ABORT)]
            if rank != 2
            else [(701.0, rank, status(166))]
        ),
    ]
    for rank in range(4)
}
#: Rank 1 raises, the others lose it.
RAISED = {
    rank: [
        *steps(1, 5, rank=rank),
        *(
            [(9.0, rank, text) for text in trace("ValueError: bad batch")]
            if rank == 1
            else [
                (11.0 + rank, rank, text)
                for text in trace("RuntimeError: Connection closed by peer [10.0.0.2]:4711")
            ]
        ),
    ]
    for rank in range(4)
}
FULL = {
    rank: [
        *steps(1, 5, rank=rank),
        *(
            [
                (9.0, rank, text)
                for text in trace(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
                )
            ]
            if rank == 3
            else [(611.0, rank, TIMEOUT), (611.1, rank, status(167))]
        ),
    ]
    for rank in range(4)
}
JOBS = {
    "hang": (HANG, ("rank-missing-collective", 2)),
    "raised": (RAISED, ("python-exception-on-one-rank", 1)),
    "memory": (FULL, ("oom-on-one-rank-then-timeout", 3)),
}
ECHOES = (
    "RuntimeError: NCCL communicator was aborted on rank 0.",
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "OSError: [Errno 28] No space left on device",
    "KeyError: 'run'",
    "torch.distributed.DistBackendError: NCCL error: remote process exited",
)
jobs = st.sampled_from(sorted(JOBS))


def merge(job: dict[int, list[Entry]], order: Sequence[int]) -> list[Entry]:
    """Return all entries in one log; ``order`` picks ranks, whose own order is kept."""
    left = {rank: list(entries) for rank, entries in job.items()}
    picked = [left[rank].pop(0) for rank in order if left[rank]]
    return [*picked, *(entry for rank in sorted(left) for entry in left[rank])]


@given(jobs, st.lists(st.integers(0, 3), max_size=40))
def test_the_order_in_which_ranks_are_interleaved_does_not_matter(
    name: str, order: list[int]
) -> None:
    job, expected = JOBS[name]
    assert root_of({"job.log": write_plain(merge(job, order))}) == expected


@given(jobs, st.permutations(range(4)), st.sampled_from([write, write_plain]))
def test_the_order_of_files_does_not_matter(
    name: str, order: list[int], form: Callable[[Sequence[Entry]], str]
) -> None:
    job, expected = JOBS[name]
    found = verdict({f"rank{rank}.log": form(job[rank]) for rank in order})
    same = verdict({f"rank{rank}.log": form(job[rank]) for rank in range(4)})
    assert found.root is not None
    assert (found.root.cause, found.root.subject.rank) == expected
    assert found == same


@given(jobs, st.integers(-(10**7), 10**7))
def test_another_start_time_does_not_matter(name: str, shift_s: int) -> None:
    job, expected = JOBS[name]
    assert root_of({f"{rank}.log": write(job[rank], shift_s) for rank in job}) == expected


@given(jobs, st.lists(st.integers(-24, 24), min_size=4, max_size=4))
def test_the_time_zone_of_a_host_does_not_matter(name: str, zones: list[int]) -> None:
    job, expected = JOBS[name]
    logs = {f"{rank}.log": write(job[rank], zones[rank] * 1800) for rank in job}
    assert root_of(logs) == expected


@given(jobs, st.data())
def test_doubled_lines_do_not_matter(name: str, data: st.DataObject) -> None:
    job, expected = JOBS[name]
    entries = merge(job, [])
    times = data.draw(st.lists(st.integers(1, 2), min_size=len(entries), max_size=len(entries)))
    doubled = [entry for entry, count in zip(entries, times, strict=True) for _ in range(count)]
    assert root_of({"job.log": write_plain(doubled)}) == expected


@given(jobs, st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ECHOES)), max_size=12))
def test_later_echoes_do_not_matter(name: str, echoes: list[tuple[int, str]]) -> None:
    job, expected = JOBS[name]
    log = write_plain(merge(job, [])) + f"{LAUNCHER_ENDS}\n"
    log += "".join(f"[rank{rank}]: {line}\n" for rank, error in echoes for line in trace(error))
    assert root_of({"job.log": log}) == expected

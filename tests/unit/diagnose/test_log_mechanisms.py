"""What several lines show together: long work, uneven inputs, different versions, ranks of files, ends."""

from __future__ import annotations

import pytest

from tests.unit.diagnose.test_log_rules import raises, verdict, watchdog

STEPS = "".join(f"step {number} loss 2.{number}\n" for number in range(1, 6))
WAITS = watchdog(1, 811) + watchdog(2, 811) + watchdog(3, 811)


def root_of(*logs: str, names: tuple[str, ...] = ()) -> tuple[str | None, int | None]:
    root = verdict(*logs, names=names).root
    return (root.cause, root.subject.rank) if root is not None else (None, None)


# ---- work of one rank


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        ("INFO Saving checkpoint to /mnt/ckpt/step_5\n", "checkpoint-io-slow-timeout"),
        ("***** Running Evaluation *****\nEvaluating: 8%\n", "rank0-long-work-timeout"),
        ("[rank0]: INFO validation video 7/12\n", "rank0-long-work-timeout"),
        ("INFO folding proteins: 40 of 900\n", "rank0-long-work-timeout"),
        ("INFO polishing shard 40 %\n", "rank0-long-work-timeout"),
    ],
)
def test_work_before_the_timeouts_of_the_other_ranks(work: str, cause: str) -> None:
    assert root_of(STEPS + work + WAITS) == (cause, 0)


@pytest.mark.parametrize(
    "over",
    [
        "INFO Saving checkpoint to /mnt/ckpt/step_5\nstep 6 loss 2.0\n",
        "INFO folding proteins: 900 of 900\n",
        "INFO quality 40 %, next: sort\nINFO all is well\n",
    ],
)
def test_work_that_is_over_explains_no_timeout(over: str) -> None:
    assert root_of(STEPS + over + WAITS) == ("rank-missing-collective", 0)


def test_a_rank_that_waited_did_not_work() -> None:
    log = STEPS + "[rank0]: INFO Saving checkpoint to /ckpt\n" + watchdog(0, 811) + WAITS
    assert root_of(log)[0] == "watchdog-timeout-straggler"


@pytest.mark.parametrize(
    ("duration", "cause"),
    [("2160.5 s", "checkpoint-io-slow-timeout"), ("36 minutes", "checkpoint-io-slow-timeout")],
)
def test_a_duration_near_the_timeout_explains_it(duration: str, cause: str) -> None:
    assert root_of(STEPS + WAITS + f"INFO writing /ckpt/step_5 took {duration}\n") == (cause, 0)
    assert root_of(STEPS + WAITS + "INFO writing /ckpt/step_5 took 12 s\n")[0] != cause


# ---- inputs


def test_the_rank_whose_inputs_ended_left_its_loop() -> None:
    log = STEPS + "rank 3: dataloader exhausted\n" + watchdog(0, 9) + watchdog(1, 9)
    assert root_of(log) == ("uneven-inputs", 3)
    shifted = watchdog(0, 9, op="ALLGATHER") + watchdog(3, 9, op="BROADCAST", numel=1)
    assert root_of(STEPS + "rank 3: dataloader exhausted\n" + shifted) == ("uneven-inputs", 3)
    continued = STEPS + "[rank3]: data exhausted\n[rank3]: step 6 loss 1.0\n" + watchdog(0, 9)
    assert root_of(continued)[0] != "uneven-inputs"


def test_ranks_with_different_totals() -> None:
    def steps(rank: int, total: int) -> str:
        return "".join(f"[rank{rank}]: batch {number}/{total} loss 2.0\n" for number in (1, 9, 17))

    uneven = steps(0, 412) + steps(1, 411) + steps(2, 412)
    assert root_of(uneven + watchdog(0, 9) + watchdog(2, 9)) == ("uneven-inputs", 1)
    even = steps(0, 412) + steps(1, 412) + steps(2, 412)
    assert root_of(even + watchdog(0, 9) + watchdog(2, 9))[0] == "rank-missing-collective"
    assert root_of(uneven) == (None, None)


def test_a_rank_that_finished_before_the_others() -> None:
    end = "INFO Training complete\nINFO bye\n"
    assert root_of(STEPS + end + WAITS) == ("rank-exits-early", 0)


# ---- groups and operations


def in_group(rank: int, group: int, name: str) -> str:
    return (
        f"[rank{rank}]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:2271] [PG ID {group} PG GUID {group}({name}) "
        f"Rank {rank}]  failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 7, "
        "last completed work: 6\n"
    )


def test_all_ranks_wait_in_groups_of_two_kinds() -> None:
    crossed = "".join(
        in_group(rank, 3 + rank // 2, "tp" if rank < 2 else "dp") for rank in range(4)
    )
    assert root_of(crossed) == ("collective-order-inversion", None)
    of_one_kind = "".join(in_group(rank, 3 + rank // 2, "tp") for rank in range(4))
    assert root_of(of_one_kind)[0] != "collective-order-inversion"
    one_is_missing = crossed.replace(in_group(1, 3, "tp"), "")
    assert root_of(one_is_missing)[0] != "collective-order-inversion"


def test_sends_and_receives_are_no_mismatch() -> None:
    assert root_of(watchdog(0, 3, op="SEND") + watchdog(1, 3, op="RECV")) == (
        "p2p-without-partner",
        None,
    )


# ---- what hosts state


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        ("PyTorch 2.4.0", "PyTorch 2.3.1", "software-differs-between-hosts"),
        (
            "torch: 2.4.0, NCCL 2.20.5",
            "torch: 2.3.1, NCCL 2.19.3",
            "software-differs-between-hosts",
        ),
        ("NCCL version 2.20.5+cuda12.4", "NCCL version 2.18.1+cuda12.1", "nccl-version-mismatch"),
        ("+ torchrun --nnodes=2 fit.py", "+ torchrun --nnodes=4 fit.py", "launch-arguments-differ"),
        ("num_processes: 16", "num_processes: 8", "launch-arguments-differ"),
    ],
)
def test_hosts_state_different_values(one: str, other: str, cause: str) -> None:
    failure = "RuntimeError: NCCL error in: x.cpp:4, unhandled system error\n"
    trace = f'Traceback (most recent call last):\n  File "fit.py", line 4, in f\n{failure}'
    assert root_of(f"{one}\n{trace}", f"{other}\n{trace}")[0] == cause
    assert root_of(f"{one}\n{trace}", f"{one}\n{trace}")[0] != cause
    assert root_of(f"{one}\n{STEPS}", f"{other}\n{STEPS}") == (None, None)


# ---- ranks


def test_a_log_that_names_one_rank_is_of_this_rank() -> None:
    error = 'Traceback (most recent call last):\n  File "fit.py", line 4, in f\nValueError: bad\n'
    logs = tuple(
        f"INFO process group initialized: rank {rank} of 3\n{error if rank == 2 else STEPS}"
        for rank in range(3)
    )
    assert root_of(*logs, names=("out.a", "out.b", "out.c")) == ("python-exception-on-one-rank", 2)


def test_the_number_of_a_lost_host_is_its_rank_if_those_of_the_others_are() -> None:
    def lost(own: int, name: str = "job-worker") -> str:
        return f"{name}-{own}:7:52 [0] misc/socket.cc:47 NCCL WARN socketProgress: Connection closed by remote peer job-worker-1.ml<460>\n"

    names = ("worker-0.log", "worker-2.log")
    assert root_of(lost(0), lost(2), names=names) == ("peer-lost", 1)
    assert root_of(lost(4), lost(7), names=names) == ("peer-lost", None)


def test_a_pid_of_open_mpi_is_no_rank() -> None:
    assert root_of("[node3:04711] *** Process received signal ***\n[node3:04711] Signal: 11\n") == (
        "segfault-in-worker",
        None,
    )


# ---- ends and copies


@pytest.mark.parametrize(
    "report",
    [
        "[811.000000] Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB\n",
        "[811.000000] python3[4711]: segfault at 7f00 ip 7f sp 7f error 4 in libx.so[7f+1]\n",
    ],
)
def test_steps_do_not_overcome_a_process_that_the_kernel_ended(report: str) -> None:
    assert root_of(STEPS + report + STEPS)[0] is not None
    assert root_of(STEPS + report + STEPS + "training finished\n") == (None, None)
    helper = report.replace("python3", "helper").replace("python", "helper")
    assert root_of(STEPS + helper + STEPS) == (None, None)


@pytest.mark.parametrize("link", ["ray.exceptions.RayTaskError(KeyError): ray::f() (pid=4)\n", ""])
def test_an_exception_that_is_repeated_is_that_of_one_rank(link: str) -> None:
    own = 'Traceback (most recent call last):\n  File "fit.py", line 4, in f\nKeyError: 1\n'
    chained = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert root_of(own + (link or chained) + own)[0] == "python-exception-on-one-rank"
    assert root_of(own + own)[0] == "python-exception-all-ranks"


def test_connections_that_close_after_the_end_of_training_are_no_failure() -> None:
    lost = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:29500\n"
    assert root_of(STEPS + lost)[0] == "master-unreachable"
    assert root_of(STEPS + "training finished\n" + lost) == (None, None)


def test_memory_that_grows_in_every_step_was_kept() -> None:
    def log(sizes: list[float]) -> str:
        steps = (
            f"step {number} loss 2.0 allocated {size:.2f} GiB\n"
            for number, size in enumerate(sizes)
        )
        return "".join(steps) + raises(
            0,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 9.00 GiB of which 1.00 GiB is free.",
        )

    assert root_of(log([2 + number / 2 for number in range(12)]))[0] == "tensors-kept-over-steps"
    assert root_of(log([4 + number % 2 for number in range(12)]))[0] == "gpu-oom-all-ranks"


# ---- warnings of NCCL


@pytest.mark.parametrize(
    ("file", "text", "cause"),
    [
        ("transport/net_ib.cc", "NET/IB : flux of port 3 is odd", "ib-error"),
        ("transport/p2p.cc", "could not ride the bus", "iommu-acs-p2p-hang"),
        ("misc/shmutils.cc", "segment is gone", "shm-too-small"),
        ("graph/topo.cc", "no path from GPU 3", "comm-config-bad"),
        ("net.cc", "NET/OFI nothing works", "nccl-plugin-missing"),
        ("misc/cudawrap.cc", "entry point is gone", "cuda-driver-mismatch"),
    ],
)
def test_an_unknown_warning_shows_the_part_of_nccl_that_failed(
    file: str, text: str, cause: str
) -> None:
    warning = f"n1:5:9 [0] {file}:77 NCCL WARN {text}\n"
    failure = raises(
        3, "torch.distributed.DistBackendError: NCCL error in: x.cpp:4, unhandled system error"
    )
    root = verdict(warning + failure).root
    assert root is not None
    assert (root.cause, root.subject.rank) == (cause, 3)
    assert text in root.message
    assert root_of(warning + STEPS) == (None, None)
    known = "n1:5:9 [0] x.cc:9 NCCL WARN Bootstrap : no socket interface found\n"
    assert root_of(known + warning + failure)[0] == "network-interface-wrong"


@pytest.mark.parametrize(
    "last", ["it 400/10000 loss 2.1", "it 10000/10000", "see a/b 4/x", "12/24/2026 begins"]
)
def test_a_last_line_that_is_no_unfinished_work(last: str) -> None:
    assert root_of(STEPS + last + "\n" + WAITS) == ("rank-missing-collective", 0)


def test_builds_of_one_version_do_not_differ() -> None:
    failure = raises(0, "RuntimeError: NCCL error in: x.cpp:4, unhandled system error")
    logs = f"PyTorch 2.4.0\n{failure}", f"torch: 2.4.0+cu121\n{failure}"
    assert root_of(*logs)[0] == "network-interface-wrong"


# ---- steps


@pytest.mark.parametrize(
    "step",
    [
        "it {}/10000 loss 2.1",
        "[{}/1000] loss: 2.1",
        "{{'loss': 2.1, 'learning_rate': 1e-5, 'seen': {}}}",
        "Batch {} lr 1e-3",
        "update {} lr 1e-3",
        "ITER {} LR 1e-3",
        "Epoch [1][{}/100] lr: 1e-3",
        '{{"step": {}, "value": 2}}',
        '{{"trainer/global_step": {}, "value": 2}}',
        "第 {} 步",
    ],
)
def test_steps_of_many_forms_overcome_a_fault(step: str) -> None:
    steps = [step.format(number) + "\n" for number in range(10, 30)]
    fault = "n1:5:9 [0] NCCL WARN NET/IB : Got async event : port error\n"
    assert root_of("".join([*steps[:10], fault, *steps[10:]])) == (None, None)
    assert root_of("".join([*steps[:10], fault]))[0] == "network-fabric-fault"
    assert root_of("".join([*steps[:10], fault, *steps[10:12]]))[0] == "network-fabric-fault"


# ---- after the end, and past an error


@pytest.mark.parametrize(
    "after",
    [
        "slurmstepd: error: *** JOB 811 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE TO TIME LIMIT ***\n",
        (
            "slurmstepd: error: *** STEP 811.0 ON n1 CANCELLED AT 2026-02-03T04:05:06 ***\n"
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        ),
    ],
)
def test_what_ends_a_job_after_its_training_is_no_failure(after: str) -> None:
    assert root_of(f"{STEPS}Training finished.\n{after}") == (None, None)
    assert root_of(STEPS + after) == ("signal-sigterm-preempted", None)


def test_an_error_that_the_program_printed_past_is_no_failure() -> None:
    error = "fatal: not a git repository (or any of the parent directories): .git\n"
    assert verdict(error).suspects
    assert not verdict(f"{error}evaluated 3153 documents\naccuracy 0.53\n").suspects
    assert not verdict("[W 2026-02-03 04:05:06,811] Trial 1 failed with value nan.\n").suspects


def test_a_route_that_is_lost_after_steps_is_a_fault_of_the_fabric() -> None:
    lost = "n4:33:78 [0] socket.h:417 NCCL WARN Net : Call to recv failed : No route to host\n"
    assert root_of(STEPS + lost)[0] == "network-fabric-fault"
    assert root_of(lost)[0] == "firewall-blocked-ports"


def test_a_wait_in_new_group_is_not_one_for_the_master() -> None:
    log = raises(
        0,
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 2/4 clients joined.",
    )
    in_new_group = log.replace(", in step", ", in new_group")
    assert in_new_group != log
    assert root_of(in_new_group)[0] == "new-group-by-some-ranks"
    assert root_of(log)[0] == "host-never-arrived"


def test_an_exception_without_error_in_its_name_keeps_its_traceback_above_the_launchers() -> None:
    log = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 3, in main\n'
        "zipfile.BadZipFile: File is not a zip file\nsome output\nmore output\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    root = verdict(log).root
    assert root is not None
    assert "BadZipFile" in root.message
    assert root.subject.line == 3

"""Verdicts over logs of failed jobs, with lines in the formats of torch and NCCL."""

from __future__ import annotations

import io

import pytest

from holdfast.core.findings import Verdict
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs.reader import read_logs

HEALTHY = "no-failure"
LAUNCHER_ENDS = (
    "W0203 04:05:06.000000 77 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 81 closing signal "
    "SIGTERM\nE0203 04:05:07.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
    "local_rank: 2 (pid: 82) of binary: /usr/bin/python\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
)


def verdict(*logs: str, names: tuple[str, ...] = ()) -> Verdict:
    """Return the verdict over these logs."""
    pieces = [
        EvidenceFile(name, EvidenceKind.LOG, len(text), lambda text=text: io.BytesIO(text.encode()))
        for name, text in zip(
            names or [f"log{number}.txt" for number in range(len(logs))], logs, strict=True
        )
    ]
    return judge(read_logs(pieces))


def watchdog(rank: int, seq: int, op: str = "ALLREDUCE", numel: int = 1024) -> str:
    """Return what torch's watchdog prints when a collective times out."""
    return (
        f"[rank{rank}]:[E203 04:05:06.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for "
        "600017 milliseconds before timing out.\n"
    )


def status(rank: int, enqueued: int, completed: int) -> str:
    """Return the line with a rank's progress."""
    return (
        f"[rank{rank}]:[E203 04:05:06.2 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump it. Last "
        f"enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"
    )


def raises(rank: int, error: str) -> str:
    """Return a traceback of one rank."""
    return "".join(
        f"[rank{rank}]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/job/train.py", line 41, in step',
            "    use(x)",
            error,
        )
    )


def test_the_rank_that_enqueued_less_is_missing() -> None:
    log = "".join(watchdog(rank, 167) + status(rank, 167, 166) for rank in (1, 2, 3)) + status(
        0, 166, 166
    )
    root = verdict(log).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", 0)
    assert "rank 0 never enqueued ALLREDUCE #167" in root.message


def test_the_minority_is_blamed_for_two_operations_with_one_number() -> None:
    root = verdict(watchdog(0, 9) + watchdog(1, 9) + watchdog(2, 9, "BROADCAST")).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("collective-mismatch", 2)


def test_an_exception_of_one_rank_precedes_its_echoes() -> None:
    echo = "".join(
        raises(rank, "RuntimeError: [3] Connection closed by peer [10.0.0.2]:4711")
        for rank in (0, 1, 3)
    )
    result = verdict(echo + raises(2, "KeyError: 'label'") + LAUNCHER_ENDS)
    root = result.root
    assert root is not None
    assert (root.cause, root.subject.rank, root.subject.line) == (
        "python-exception-on-one-rank",
        2,
        41,
    )


def test_one_exception_on_all_ranks() -> None:
    root = verdict(
        "".join(raises(rank, "FileNotFoundError: [Errno 2] /data/x") for rank in range(4))
    ).root
    assert root is not None
    assert root.cause == "python-exception-all-ranks"


def test_out_of_memory_on_one_rank_or_on_all() -> None:
    out = raises(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    alone, on_all = (
        verdict(out + watchdog(0, 400) + watchdog(2, 400)),
        verdict(out + out.replace("rank1", "rank0")),
    )
    assert alone.root is not None
    assert (alone.root.cause, alone.root.subject.rank) == ("oom-on-one-rank-then-timeout", 1)
    assert on_all.root is not None
    assert on_all.root.cause == "gpu-oom-all-ranks"


@pytest.mark.parametrize(
    ("log", "cause", "rank"),
    [
        (
            "[rank: 3] Child process with PID 77 terminated with code 1. Forcefully terminating",
            "on-one-rank",
            3,
        ),
        ("srun: error: n1: task 5: Exited with exit code 1", "on-one-rank", 5),
        ("srun: error: n1: tasks 4-7: Exited with exit code 1", "all-ranks", 4),
        ("Pod: ns.fit-worker-0 exited with code 1", "on-one-rank", None),
    ],
)
def test_an_exit_code_without_a_reason_is_an_exception(
    log: str, cause: str, rank: int | None
) -> None:
    root = verdict(log + "\n").root
    assert root is not None
    assert (root.cause, root.subject.rank) == (f"python-exception-{cause}", rank)
    assert (
        verdict(log + "\n" + raises(2, "KeyError: 'label'")).root.cause
        == "python-exception-on-one-rank"
    )  # type: ignore[union-attr]
    assert verdict(log.replace("code 1", "code 0") + "\n").root is None


def test_termination_by_the_launcher_is_no_cause() -> None:
    ended = "Unable to shutdown process 81 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
    assert verdict(ended).root is None


def test_ranks_in_a_broadcast_wait_for_its_root() -> None:
    root = verdict("".join(watchdog(rank, 4, "BROADCAST") for rank in (1, 2, 4))).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", 0)


def gloo(rank: int, line: int, text: str, function: str = "step") -> str:
    """Return a traceback with an error of gloo at ``line`` of the job's script."""
    return raises(rank, f"RuntimeError: [gloo/transport/tcp/pair.cc:553] {text}").replace(
        "line 41, in step", f"line {line}, in {function}"
    )


def test_the_rank_that_waited_at_another_line_is_named() -> None:
    waits = "".join(
        gloo(rank, 41, "Timed out waiting 9000ms for recv operation to complete") for rank in (0, 2)
    )
    early = verdict(waits + gloo(1, 24, "Connection closed by peer [10.0.0.2]:81", "validate")).root
    late = verdict(waits + gloo(1, 48, "Connection closed by peer [10.0.0.2]:81")).root
    assert early is not None
    assert (early.cause, early.subject.rank, early.subject.line) == (
        "rank-missing-collective",
        1,
        24,
    )
    assert late is not None
    assert (late.cause, late.subject.rank) == ("uneven-inputs", 1)


def test_the_rank_that_reports_no_lost_peer_is_lost() -> None:
    closed = "".join(
        raises(rank, "RuntimeError: Connection closed by peer [10.0.0.2]:81") for rank in (0, 2)
    )
    gap, with_size = verdict(closed).root, verdict("[rank 0] world_size=4\n" + closed).root
    assert gap is not None
    assert (gap.cause, gap.subject.rank) == ("peer-lost", 1)
    assert with_size is not None
    assert with_size.subject.rank is None  # two ranks remain


def test_a_root_that_reset_the_connection_is_lost() -> None:
    error = "[2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'"
    root = verdict(
        f"[rank2]: RuntimeError: {error}, but store->get('0') got error: Connection reset by peer\n"
    ).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("peer-lost", 0)


def test_the_gloo_rank_without_a_timeout_is_missing() -> None:
    waits = "".join(
        raises(rank, "RuntimeError: Timed out waiting 9000ms for recv operation") for rank in (0, 1)
    )
    root = verdict("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/3\n" + waits).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", 2)


def test_fingerprints_are_compared_over_ranks() -> None:
    kinds = {
        0: "ALLREDUCE, TensorShape=[3]",
        1: "BROADCAST, TensorShape=[5]",
        2: "BROADCAST, TensorShape=[5]",
    }
    prints = {
        rank: f"collective: CollectiveFingerPrint(SequenceNumber=9, OpType={kind}, "
        for rank, kind in kinds.items()
    }
    log = "".join(
        f"[rank{one}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {one} is running "
        f"{prints[one]}TensorDtypes=Float), but Rank {other} is running {prints[other]}TensorDtypes=Float)\n"
        for one, other in ((1, 0), (0, 1), (2, 0))
    )
    root = verdict(log).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("collective-mismatch", 0)


def test_a_restarted_job_that_finished_has_no_cause() -> None:
    failed = (
        "ConnectionResetError: [Errno 104] Connection reset by peer\n"
        + LAUNCHER_ENDS.rsplit("torch.", 1)[0]
    )
    went_on = "".join(f"step {step} / 40 loss 2.0\n" for step in range(4))
    assert verdict(failed + went_on + "training finished\n").root is None
    assert verdict(failed + went_on + failed).root is not None


def test_a_signal_after_the_end_of_training_is_no_cause() -> None:
    ended = "Received 15 death signal, shutting down workers\n"
    assert verdict("step 5 / 5 loss 2.0\ntraining finished\n" + ended).root is None
    cut = verdict("training finished\nstep 5 / 9 loss 2.0\n" + ended).root
    assert cut is not None
    assert cut.cause == "signal-sigterm-preempted"


def test_the_earliest_failure_table_of_several_nodes_counts() -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-02-03_04:05:{0:02d}\n  host      : n{1}\n"
        "  rank      : {1} (local_rank: 0)\n  exitcode  : 1 (pid: 8{1})\n"
    )
    root = verdict(table.format(9, 0), table.format(7, 4)).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("python-exception-all-ranks", 4)


def test_the_killed_rank_is_inferred_from_the_survivors() -> None:
    closed = "".join(
        raises(rank, "RuntimeError: Connection closed by peer [10.0.0.2]:81") for rank in (0, 1)
    )
    root = verdict(
        "world_size=3\n" + closed + "['python', 'fit.py'] exits with return code = -9\n"
    ).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("host-oom-killed", 2)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (37, "exit-nonzero"),
        (1, "python-exception-on-one-rank"),
        (-6, "segfault-in-worker"),
        (-9, "host-oom-killed"),
    ],
)
def test_the_rank_in_the_table_without_a_lost_peer_failed_first(code: int, cause: str) -> None:
    closed = raises(0, "RuntimeError: Connection closed by peer [10.0.0.2]:81")
    table = f"  host      : n1\n  rank      : 2 (local_rank: 2)\n  exitcode  : {code} (pid: 82)\n"
    root = verdict(closed + table).root
    assert root is not None
    assert (root.cause, root.subject.rank) == (cause, 2)


def test_ranks_that_timed_out_on_each_other() -> None:
    waits = raises(0, "RuntimeError: Timed out waiting 9000ms for send operation")
    closed = raises(1, "RuntimeError: Connection closed by peer [10.0.0.2]:81")
    root = verdict(waits + closed).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("rank-missing-collective", None)


def test_the_rank_that_did_not_join_the_store_is_named() -> None:
    log = (
        "[rank 0] ready\n[rank 1] world_size=3\n[rank1]: torch.distributed.DistStoreError: wait timeout after 8000ms, "
        "keys: /default_pg/0//cpu//0/0\n[rank0]: DistStoreError: Timed out after 9 seconds waiting for clients. "
        "2/3 clients joined.\n"
    )
    root = verdict(log).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("store-wait", 2)


REFUSED_BY_SERVICE = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/http/client.py", line 952, in connect
    self.sock = self._create_connection(
  File "/usr/lib/python3.11/socket.py", line 836, in create_connection
    sock.connect(sa)
ConnectionRefusedError: [Errno 111] Connection refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/job/train.py", line 41, in fetch
    return urlopen(url).read()
  File "/usr/lib/python3.11/urllib/request.py", line 1351, in do_open
    raise URLError(err)
urllib.error.URLError: <urlopen error [Errno 111] Connection refused>
"""


def with_rank(rank: int, text: str) -> str:
    """Return a log with torchrun's prefix of a rank on each line."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        (REFUSED_BY_SERVICE, True),
        (REFUSED_BY_SERVICE.replace("/http/client", "/multiprocessing/connection"), False),
        (
            REFUSED_BY_SERVICE.replace(
                '  File "/job',
                '  File "/x/site-packages/torch/distributed/elastic/multiprocessing/errors/'
                '__init__.py", line 9, in wrapper\n    return f(*args)\n  File "/job',
            ),
            True,
        ),
    ],
)
def test_a_service_that_refuses_a_connection_is_no_lost_peer(text: str, is_own: bool) -> None:  # noqa: FBT001
    lost = raises(0, "RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:138.")
    found = verdict(lost + with_rank(2, text.partition("\nDuring")[0] if not is_own else text)).root
    assert found is not None
    expected = ("python-exception-on-one-rank", 2, "/job/train.py", 41)
    subject = found.subject
    assert ((found.cause, subject.rank, subject.file, subject.line) == expected) == is_own


def test_stale_addresses_of_the_previous_attempt() -> None:
    refused = "RuntimeError: Gloo connectFullMesh failed with timed out: SO_ERROR: Connection refused, remote=[1.2.3.4]:5\n"
    root = verdict(LAUNCHER_ENDS.rsplit("torch.", 1)[0] + refused).root
    assert root is not None
    assert root.cause == "stale-rendezvous-store"


@pytest.mark.parametrize(
    ("log", "cause", "rank"),
    [
        (
            "ERROR:failed (exitcode: -9) local_rank: 3 (pid: 5) of binary: python",
            "host-oom-killed",
            3,
        ),
        (
            "spawn.ProcessExitedException: process 2 terminated with signal SIGSEGV",
            "segfault-in-worker",
            2,
        ),
        (
            "srun: error: n1: task 6: Killed\nsrun: error: n1: task 1: Exited with exit code 1",
            "host-oom-killed",
            6,
        ),
        (
            "0: error: Detected 1 oom-kill event(s)\nsrun: error: n1: task 2: Out Of Memory",
            "host-oom-killed",
            2,
        ),
    ],
)
def test_the_rank_that_a_launcher_names(log: str, cause: str, rank: int) -> None:
    root = verdict(log + "\n").root
    assert root is not None
    assert (root.cause, root.subject.rank) == (cause, rank)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("[node0]:29501", "node0:29501"),
        ("[::ffff:10.0.0.1]:29400", "10.0.0.1:29400"),
        ("(node-1.cluster, 29500)", "node-1.cluster:29500"),
        ("10.0.0.1:29400", "10.0.0.1:29400"),
    ],
)
def test_remedies_have_the_script_and_the_endpoint_of_the_log(endpoint: str, shown: str) -> None:
    error = f"DistNetworkError: The client socket has failed to connect to {endpoint} (errno: 110)."
    root = verdict(raises(1, error).replace("in step", "in <module>")).root
    assert root is not None
    commands = [remedy.command or "" for remedy in root.remedies]
    assert [command for command in commands if f"{shown} /job/train.py" in command], commands


def test_blocked_ports_differ_from_an_unreachable_master() -> None:
    unreachable = "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (m, 29500).\n"
    waits = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
    blocked, absent = verdict(waits, unreachable), verdict(unreachable)
    assert blocked.root is not None
    assert blocked.root.cause == "firewall-blocked-ports"
    assert absent.root is not None
    assert absent.root.cause == "master-unreachable"


def test_kernel_lines_precede_lines_of_ranks() -> None:
    kernel = (
        "[Tue Feb  3 04:05:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    result = verdict("".join(watchdog(rank, 5000) for rank in range(4)), kernel)
    assert result.root is not None
    assert result.root.cause == "gpu-fell-off-bus-xid-ecc"
    assert [one.cause for one in result.consequences] == ["watchdog-timeout-straggler"]


def test_ranks_in_file_names() -> None:
    names = tuple(f"run/none_x/attempt_0/{rank}/stderr.log" for rank in range(2))
    root = verdict(
        "all fine\n", "Traceback (most recent call last):\nValueError: bad shard\n", names=names
    ).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("python-exception-on-one-rank", 1)


def test_steps_that_become_slower() -> None:
    line = "iteration {0}/ 100 | elapsed time per iteration (s): {1:.2f} | lm loss: 2.1 |\n"
    slow = "".join(line.format(step, 10.0 + max(0, step - 4)) for step in range(8))
    root = verdict(slow).root
    assert root is not None
    assert root.cause == "watchdog-timeout-straggler"
    assert (
        verdict("".join(line.format(step, 10.0 + 0.1 * (step % 2)) for step in range(8))).root
        is None
    )


def test_data_preparation_that_exceeds_the_timeout() -> None:
    bar = "Tokenizing prompts (num_proc=8):  92%|#########2| 4600/5000 [29:58<02:36, 2.6 examples/s]\n"
    root = verdict(bar + watchdog(1, 1) + watchdog(2, 1)).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("rank0-long-work-timeout", 0)


def test_gpus_of_one_host_that_connect_without_completing_a_collective() -> None:
    log = "n1:5:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nn1:5:9 [0] NCCL INFO Connected all trees\n"
    root = verdict(log).root
    assert root is not None
    assert root.cause == "iommu-acs-p2p-hang"
    assert verdict(log + "step 1 / 10 loss 2.0\n").root is None
    warned = 'h7:5:9 [0] NCCL WARN Missing "iommu=pt" from kernel command line\n'
    started = "h7:5:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>\n"
    root = verdict(warned + started).root
    assert root is not None
    assert root.cause == "iommu-acs-p2p-hang"
    assert verdict(warned + started + "step 1 / 10 loss 2.0\n").root is None


def test_slurm_names_the_task() -> None:
    root = verdict(
        "srun: error: node17: task 11: Out Of Memory\nsrun: error: node18: tasks 0-7: Terminated\n"
    ).root
    assert root is not None
    assert (root.cause, root.subject.rank, root.subject.host) == ("host-oom-killed", 11, "node17")


def test_a_log_without_progress_is_not_reported_as_healthy() -> None:
    assert verdict("some words\n").unseen
    assert not verdict("step 3 / 10\ntraining finished\n").unseen


def root_of(*logs: str) -> tuple[str, int | None]:
    """Return cause and rank of the root for the logs of one job."""
    root = verdict(*logs).root
    return (root.cause, root.subject.rank) if root else (HEALTHY, None)


OUT = "CUDA out of memory. Tried to allocate 3.00 GiB."


def test_the_first_of_several_ranks_is_named() -> None:
    one_log = f"[rank3]: torch.OutOfMemoryError: {OUT}\n[rank1]: torch.OutOfMemoryError: {OUT}\n"
    assert root_of(one_log) == ("gpu-oom-all-ranks", 3)
    early, late = (f"2026-02-03 04:05:0{second} {OUT}\n" for second in (1, 8))
    logs = verdict(late, early, names=("rank0.log", "rank5.log")).root
    assert logs is not None
    assert logs.subject.rank == 5
    untimed = verdict(OUT, OUT, names=("rank6.log", "rank4.log")).root
    assert untimed is not None
    assert untimed.subject.rank == 4


def test_the_index_of_the_full_gpu_is_not_the_rank() -> None:
    assert root_of(f"RuntimeError: {OUT} GPU 3 has a total capacity of 40.00 GiB\n") == (
        "gpu-oom-all-ranks",
        0,
    )
    assert root_of(f"[rank1]: RuntimeError: {OUT} (GPU 3; 40.00 GiB total capacity)\n") == (
        "gpu-oom-all-ranks",
        1,
    )


def test_the_timeout_of_one_rank_is_inferred_from_the_others_reports() -> None:
    not_entered = "".join(
        status(rank, 88, 88).replace("from rank 0", "from  rank 6") for rank in (0, 1, 2)
    )
    assert root_of(not_entered + LAUNCHER_ENDS) == ("rank-missing-collective", 6)
    stuck = "".join(
        status(rank, 90, 88).replace("from rank 0", "from  rank 6") for rank in (0, 1, 2)
    )
    assert root_of(stuck) == ("watchdog-timeout-straggler", 6)


def test_ranks_in_different_work_of_a_group() -> None:
    behind = watchdog(0, 530) + watchdog(1, 498)
    assert root_of(behind) == ("rank-missing-collective", 1)
    alone_ahead = watchdog(0, 530) + watchdog(1, 530) + watchdog(2, 531, "BROADCAST")
    assert root_of(alone_ahead) == ("rank-missing-collective", 2)


def test_work_of_different_groups_is_not_compared() -> None:
    def of_group(rank: int, number: int, group: int) -> str:
        return (
            f"[rank{rank}]:[E203 04:05:06.2 ProcessGroupNCCL.cpp:2168] [PG ID {group} PG GUID {group} Rank {rank}]  "
            f"failure detected by watchdog at work sequence id: {number} PG status: last enqueued work: {number}, last "
            f"completed work: {number - 1}\n"
        )

    log = of_group(0, 530, 1) + of_group(1, 41, 2)
    root = verdict(log).root
    assert root is not None
    assert "did not make the same calls" not in root.message


def test_a_rank_that_waited_alone_names_another_only_in_the_output_of_a_launcher() -> None:
    assert root_of(watchdog(0, 530) + LAUNCHER_ENDS) == ("rank-missing-collective", 1)
    assert root_of(watchdog(1, 530)) == ("rank-missing-collective", None)
    own = verdict(watchdog(1, 530) + LAUNCHER_ENDS, names=("rank_1.log",)).root
    assert own is not None
    assert own.subject.rank is None


def test_a_timeout_in_a_wrapped_line() -> None:
    lines = [watchdog(rank, 40).replace("timeout: ", "timeout:\n") for rank in (0, 1, 3)]
    assert root_of(lines[1]) == ("watchdog-timeout-straggler", None)
    assert root_of("".join(lines)) == ("rank-missing-collective", 2)


def test_a_broadcast_waits_for_its_root_in_another_format() -> None:
    earlier_line = "[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued NCCL work: 1\n"
    assert root_of(earlier_line + watchdog(7, 1, "BROADCAST")) == ("rank-missing-collective", 0)


def test_ranks_that_request_the_unique_id_wait_for_its_origin() -> None:
    log = (
        "[rank7]: torch.distributed.DistBackendError: [7] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, "
        "keys: /0\n"
    )
    assert root_of(log) == ("rank-missing-collective", 0)


def test_a_hung_watchdog_is_the_reason_for_the_abort() -> None:
    log = "Terminating the process, due to ProcessGroupNCCL watchdog hang.\nprocess 1 terminated with signal SIGABRT\n"
    assert root_of(log)[0] == "watchdog-timeout-straggler"


def fingerprints(
    one: int, other: int, numbers: tuple[int, int], shapes: tuple[int, int] = (8, 9)
) -> str:
    """Return torch's error for two ranks with different collectives."""
    kinds = [
        f"CollectiveFingerPrint(SequenceNumber={number}, OpType=ALLREDUCE, TensorShape=[{shape}])"
        for number, shape in zip(numbers, shapes, strict=True)
    ]
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {one} is running collective: {kinds[0]}, "
        f"but Rank {other} is running collective: {kinds[1]}.\n"
    )


def test_of_two_different_calls_the_rank_behind_or_the_reporter_is_named() -> None:
    assert root_of(fingerprints(1, 5, (101, 3))) == ("collective-mismatch", 5)
    assert root_of(fingerprints(1, 5, (3, 3))) == ("collective-mismatch", 1)


def test_the_rank_that_monitored_barrier_names_is_lost() -> None:
    log = (
        "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 2. Please check rank 2 logs for faulty rank.\n [pair.cc:598] Connection closed by peer [10.0.0.2]\n"
    )
    assert root_of(log) == ("peer-lost", 2)


def test_mpirun_names_the_rank_that_crashed() -> None:
    log = "mpirun noticed that process rank 19 with PID 88 on node n3 exited on signal 11 (Segmentation fault).\n"
    assert root_of(log) == ("segfault-in-worker", 19)


def test_an_exception_before_further_steps_was_caught() -> None:
    steps = "".join(f"iteration {number}/900\n" for number in (4, 5, 6))
    assert root_of(raises(3, "FileExistsError: [Errno 17] /scratch/x") + steps) == (HEALTHY, None)
    assert (
        root_of(raises(3, "KeyError: 'label'") + steps + LAUNCHER_ENDS)[0]
        == "python-exception-on-one-rank"
    )


def test_only_a_log_of_the_kernel_rules_out_its_faults() -> None:
    lost = "[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:4711\n"
    assert not verdict(lost).ruled_out
    assert any("kernel" in text for text in verdict(lost).unseen)
    found = verdict(lost, "[ 8123.000001] usb 1-1: new high-speed device number 4\n")
    assert {out.cause for out in found.ruled_out} == {
        "host-oom-killed",
        "gpu-fell-off-bus-xid-ecc",
    }


def test_another_cause_is_shown_only_with_a_line_of_its_own() -> None:
    assert not verdict(raises(1, "KeyError: 'x'")).suspects
    refused = "[rank0]: [W203 04:05:06.1 socket.cpp:752] connect to 10.0.0.2: Connection refused"
    found = verdict(raises(1, "KeyError: 'x'") + refused + "\n")
    others = (*found.suspects, *found.consequences)
    assert all(one.evidence for one in others)


def test_a_ray_actor_is_named_by_its_rank() -> None:
    joined = "(Loop pid=81) rank 0 of 2 joined\n(Loop pid=82) rank 1 of 2 joined\n"
    raised = (
        "Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(KeyError): ray::Loop.fit() (pid=82, ip=10.0.0.9)\n"
        "  File \"/job/a.py\", line 7, in fit\nKeyError: 'label'\n"
    )
    assert root_of(joined + raised) == ("python-exception-on-one-rank", 1)
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly.\n\tclass_name: Loop\n\tpid: 82\n"
    assert root_of(joined + died) == ("peer-lost", 1)


def test_out_of_memory_on_other_accelerators() -> None:
    log = "[rank1]:[E203 04:05:06.1 x.ts:444] NPU out of memory. It tried to allocate 2.00 GiB (NPU 1; 60 GiB total)\n"
    assert root_of(log + raises(1, "RuntimeError: the inner error stands above")) == (
        "gpu-oom-all-ranks",
        1,
    )


UNSIGNED = 'Traceback (most recent call last):\n  File "/job/train.py", line 41, in step\n    use(x)\nKeyError: 3\n'


def test_launchers_determine_the_rank_if_no_line_does() -> None:
    assert root_of(UNSIGNED + LAUNCHER_ENDS) == ("python-exception-on-one-rank", 2)
    assert root_of(UNSIGNED + UNSIGNED + LAUNCHER_ENDS) == ("python-exception-all-ranks", 2)
    assert root_of(UNSIGNED + "srun: error: n4: task 6: Exited with exit code 1\n") == (
        "python-exception-on-one-rank",
        6,
    )
    wrapped = (
        "mpirun noticed that process rank 5 with PID 77 on node n3 exited on\nsignal 9 (Killed).\n"
    )
    assert root_of(wrapped) == ("host-oom-killed", 5)


def test_of_several_ranks_the_launchers_failed_process_is_named() -> None:
    error = "RuntimeError: shapes do not match"
    on_all = "".join(raises(rank, error) for rank in (0, 1, 2, 3))
    assert root_of(on_all + LAUNCHER_ENDS) == ("python-exception-all-ranks", 2)
    other_node = "".join(raises(rank, error) for rank in (8, 9))
    assert root_of(other_node + LAUNCHER_ENDS) == ("python-exception-all-ranks", 8)


@pytest.mark.parametrize(
    "prefix", ["  ", "1105:[default2]:", "2026-02-03 04:05:06,789 - trainer - INFO - ", "stderr: "]
)
def test_text_before_the_rank_prefix(prefix: str) -> None:
    lines = "".join(
        f"{prefix}{line}\n" for line in raises(2, "ValueError: no such layer").splitlines()
    )
    assert root_of(lines) == ("python-exception-on-one-rank", 2)


def test_a_slow_checkpoint_is_no_failure_without_a_timeout() -> None:
    long = "Loading the checkpoint took 410.2 secs\n"
    assert root_of(long) == (HEALTHY, None)
    assert root_of(
        long + "RuntimeError: Timed out waiting 1800000ms for recv operation to complete\n"
    )[0] == ("checkpoint-io-slow-timeout")


@pytest.mark.parametrize("digits", ["9" * 12, "9" * 5000])
def test_absurd_numbers_do_not_prevent_a_verdict(digits: str) -> None:
    communicator = (
        f"n1:5:9 [0] NCCL INFO comm 0x7f rank {digits} nranks {digits} cudaDev 0\n"
        + watchdog(1, 530)
    )
    spawned = f"process {digits} terminated with signal SIGKILL\nsrun: error: n1: tasks 0-{digits}: Killed\n"
    launched = f"failed (exitcode: 1) local_rank: {digits} (pid: {digits})\n  rank      : {digits} (local_rank: 0)\n"
    missing = f"RuntimeError: Ranks {digits}, 3 failed to pass monitoredBarrier in 9 ms\n"
    for log in (
        communicator,
        spawned,
        UNSIGNED + launched,
        communicator + spawned + launched,
        missing,
    ):
        assert verdict(log).root is not None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("OSError: [Errno 28] No space left on device: '/data/out.csv'", "a disk is full"),
        (
            "OSError: [Errno 122] Disk quota exceeded: 'ckpt/7.pt'",
            "the disk that checkpoints are written to has no quota left",
        ),
    ],
)
def test_a_full_disk_is_that_of_checkpoints_only_if_a_line_says_so(
    error: str, message: str
) -> None:
    root = verdict(raises(0, error)).root
    assert root is not None
    assert root.message == message


def test_the_host_that_reports_a_lost_peer_is_not_accused() -> None:
    line = "node1:5:9 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer node2<55912>"
    root = verdict(line).root
    assert root is not None
    assert root.subject.host is None
    assert "reported by node1" in root.message


def test_a_work_that_failed_did_not_time_out() -> None:
    failed = (
        "[rank0]:[E724 07:37:39.4 ProcessGroupNCCL.cpp:1795] [PG ID 0 PG GUID 0(default_pg) Rank 0] Exception (either "
        "an error or timeout) detected by watchdog at work: 89, last enqueued NCCL work: 89, last completed NCCL work: 88."
    )
    root = verdict(failed).root
    assert root is not None
    assert "timed out" not in root.message

"""Waits of HCCL, records of several lines, setups of two versions, decided ends, reports of success."""

from __future__ import annotations

import pytest

from tests.unit.diagnose.test_log_mechanisms import STEPS, root_of
from tests.unit.diagnose.test_log_rules import watchdog

ERROR = "  File \"/w/loop.py\", line 52, in step\n    label = names[index]\nKeyError: 'ship'\n"
TRACEBACK = f"Traceback (most recent call last):\n{ERROR}"
CLOSED = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41\n"


def test_timeouts_of_hccl_are_waits_for_the_rank_that_works() -> None:
    waits = "".join(
        f"[rank{rank}]: RuntimeError: ACL stream synchronize failed, error code:507048\n"
        f"[rank{rank}]: EI0002: 2026-06-27 The wait execution of the Notify register times out.\n"
        for rank in (1, 2)
    )
    log = f"{STEPS}INFO Saving checkpoint to /mnt/ckpt/step_5\n{waits}"
    assert root_of(log) == ("checkpoint-io-slow-timeout", 0)


def test_the_late_error_of_an_ascend_device_is_an_echo_of_the_missing_rank() -> None:
    log = (
        f"{STEPS}EI0002: [PID: 29] 2025-10-11 The wait execution of the Notify register times out. Reason: "
        "The Notify register has not received the Notify record from remote rank: [2].\n"
        "RuntimeError: npuSynchronizeDevice:build/x.ts:479 NPU function error: "
        "AclrtSynchronizeDeviceWithTimeout, error code is 507048\n"
    )
    assert root_of(log) == ("rank-missing-collective", 2)


def test_an_error_of_ascends_libraries_is_of_the_rank_in_the_line_above() -> None:
    log = (
        "[ERROR] 2024-05-21-11:57:54 (PID:92, Device:3, RankID:3) ERR02200 DIST call hccl api failed.\n"
        "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is "
        "running.\n"
    )
    assert root_of(log) == ("gpu-in-use", 3)


def test_a_record_of_several_lines_is_of_the_rank_of_its_first() -> None:
    log = "[n1 rank 1] step 9 loss 2.0\n[n1 rank 2] unhandled: " + TRACEBACK + watchdog(0, 811)
    assert root_of(log) == ("python-exception-on-one-rank", 2)


def test_a_traceback_in_any_field_of_a_record_is_read() -> None:
    text = TRACEBACK.replace("\n", "\\n").replace('"', '\\"')
    log = (
        f'{{"rank": 3, "msg": "step 9 loss 2.0"}}\n{{"rank": 3, "msg": "ended", "why": "{text}"}}\n'
    )
    assert root_of(log) == ("python-exception-on-one-rank", 3)


def test_messages_of_another_nccl_are_no_mismatch_of_collectives() -> None:
    first = "NCCL version 2.18.5+cuda12.2\n"
    garbled = "n0:1:2 [0] bootstrap.cc:107 NCCL WARN Message truncated : received 136 bytes instead of 128\n"
    second = "NCCL version 2.20.3+cuda12.3\nn1:1:2 [0] misc/socket.cc:49 NCCL WARN Connection closed by remote peer n0<4>\n"
    assert root_of(first + garbled, second)[0] == "nccl-version-mismatch"
    assert root_of(
        "n0:1:2 [0] x.cc:1 NCCL WARN Message truncated : received 136 bytes instead of 128\n"
    )[0] == ("collective-mismatch")


def test_a_rank_that_decided_to_end_is_what_the_others_lost() -> None:
    ends = "[rank1]: early stopping, exiting\n"
    assert root_of(STEPS + ends + CLOSED) == ("rank-exits-early", 1)
    assert root_of(CLOSED + "[rank0]: step 1 loss 2\n" * 3 + ends)[0] != "rank-exits-early"


def test_more_arrivals_than_ranks_are_those_of_an_earlier_job() -> None:
    log = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, "
        "for key: store_based_barrier_key:1 (world_size=4, worker_count={}, timeout=0:30:00)\n"
    )
    assert root_of(log.format(8))[0] == "stale-rendezvous-store"
    assert root_of(log.format(3))[0] != "stale-rendezvous-store"


def test_two_operations_without_numbers_are_a_mismatch_of_the_rank_outside_the_barrier() -> None:
    log = "".join(
        f"[E ProcessGroupNCCL.cpp:566] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(OpType={operation}, TensorShape=[{size}], Timeout(ms)=1800000) ran for 1803004 "
        "milliseconds before timing out.\n"
        for rank, operation, size in ((1, "ALLREDUCE", 1), (0, "BROADCAST", 448))
    )
    assert root_of(STEPS + log) == ("collective-mismatch", 0)


def test_a_smaller_batch_after_out_of_memory_is_no_failure() -> None:
    log = "CUDA out of memory. Tried to allocate 2.00 GiB. Batch size 64 failed, trying 32\n"
    assert root_of(log + "epoch 1/2 loss 0.7\n")[0] is None
    assert root_of(log)[0] == "gpu-oom-all-ranks"


def test_the_pod_that_was_killed_is_the_rank_of_its_log() -> None:
    logs = (
        "NAME READY STATUS\nw-1 0/1 OOMKilled\n",
        "RANK=0 LOCAL_RANK=0\n",
        "RANK=1 LOCAL_RANK=0\nKilled\n",
    )
    assert root_of(*logs, names=("pods.txt", "w-0.log", "w-1.log")) == ("host-oom-killed", 1)


def test_a_file_read_during_its_download_is_not_corrupt() -> None:
    bar = "model.bin:  {}%|#  | 98M/1.2G [00:0{}<00:06, 141MB/s]\n"
    broken = "RuntimeError: PytorchStreamReader failed reading zip archive\n"
    assert root_of(bar.format(8, 1) + broken + bar.format(99, 9))[0] == "model-download-race"
    assert root_of(bar.format(8, 1) + bar.format(99, 9) + broken)[0] == "checkpoint-corrupt"


def test_a_rendezvous_closed_after_a_lost_peer_is_its_effect() -> None:
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
    assert root_of(STEPS + CLOSED + closed)[0] == "peer-lost"
    assert root_of(closed)[0] == "master-unreachable"


PYTEST = "======= test session starts =======\ncollected 2 items\n"


@pytest.mark.parametrize(
    ("header", "summary", "cause"),
    [
        (PYTEST, "===== 2 passed, 1 xfailed, 3 warnings in 61.20s (0:01:01) =====", None),
        (PYTEST, "===== 1 failed, 1 passed in 61.20s (0:01:01) =====", "rank-missing-collective"),
        (
            "",
            "===== 2 passed in 61.20s (0:01:01) =====",
            "rank-missing-collective",
        ),  # the tests began later
        ("", "-----\nRan 2 tests in 61.204s\n\nOK (skipped=1)", None),
        ("", "store reachable\nOK", "rank-missing-collective"),
    ],
)
def test_failures_in_tests_that_pass_are_provoked(
    header: str, summary: str, cause: str | None
) -> None:
    log = f"{header}test_timeout {watchdog(0, 811)}test_crash PASSED\n{summary}\n"
    assert root_of(log)[0] == cause


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("=== job finished, exit code 0 ===", None),
        ("[supervisor] job finished: success", None),
        ("=== job finished, exit code 1 ===", "signal-sigterm-preempted"),
    ],
)
def test_a_requeued_job_that_succeeds_has_not_failed(end: str, cause: str | None) -> None:
    cancelled = "slurmstepd: error: *** JOB 9 ON c1 CANCELLED AT 2025-02-02T04:10:11 DUE TO PREEMPTION ***\n"
    ended = "srun: error: c1: tasks 0-3: Exited with exit code 143\n"
    later = "".join(f"step {step} loss 2.0\n" for step in range(100, 110))
    assert root_of(f"{STEPS}{cancelled}{ended}{later}{end}\n")[0] == cause


@pytest.mark.parametrize(
    ("before", "cause"),
    [("rank 0 finished 900 steps\n", None), ("step 9 loss 2.0\n", "signal-sigterm-preempted")],
)
def test_helpers_that_are_ended_after_the_training_are_no_failure(
    before: str, cause: str | None
) -> None:
    ended = "supervisor: sent SIGTERM to exporter, exit code -15\n"
    assert root_of(STEPS + before + ended)[0] == cause


@pytest.mark.parametrize(("rank", "cause"), [(2, None), (1, "peer-lost")])
def test_a_rank_that_exits_may_lose_the_store(rank: int, cause: str | None) -> None:
    exits = (
        "[rank2]:[W1207 14:40:00.551801022 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
        "destroy_process_group() was not called before program exit, which can leak resources.\n"
    )
    lost = (
        f"[rank{rank}]:[W1207 14:40:04.911200411 TCPStore.cpp:125] [c10d] recvValue failed on "
        "SocketImpl(fd=4, addr=[localhost]:51210, remote=[localhost]:29500): failed to recv, got 0 "
        "bytes\n"
    )
    assert root_of(STEPS + exits + lost)[0] == cause

"""Ranks of processes, local ranks, GPUs and pods, learned from lines that name both."""

from __future__ import annotations

import io

from holdfast.core.findings import Finding
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.logs.reader import read_logs

MAPPING = (
    "n1: [2024-04-02 09:11:05,201] [INFO] [launch.py:162:main] global_rank_mapping="
    "defaultdict(<class 'list'>, {'n1': [0, 1], 'n2': [2, 3]})\n"
)
KILL = "Out of memory: Killed process 812 (python) total-vm:31kB, anon-rss:24kB, file-rss:0kB\n"


def root_of(*logs: str) -> Finding:
    """Return the root cause over logs of several nodes."""
    files = (
        EvidenceFile(f"node-{number}.log", EvidenceKind.LOG, len(log), lambda log=log: _open(log))
        for number, log in enumerate(logs)
    )
    root = judge(read_logs(files)).root
    assert root is not None
    return root


def _open(log: str) -> io.BytesIO:
    return io.BytesIO(log.encode())


def test_a_killed_pid_is_the_rank_that_the_launcher_started_with_it() -> None:
    started = (
        "n2: [2024-04-02 09:11:05,340] [INFO] [launch.py:253:main] process 812 spawned with "
        "command: ['python', '-u', 'sft.py', '--local_rank=1']\n"
    )
    root = root_of(f"{MAPPING}{started}n2: {KILL}")
    assert (root.cause, root.subject.rank) == ("host-oom-killed", 3)


def test_a_failed_command_is_a_local_rank_of_its_host() -> None:
    ended = "[ERROR] ['python', '-u', 'a.py', '--local_rank=0'] exits with return code = -9\n"
    assert root_of(f"{MAPPING}n2: {ended}").subject.rank == 2
    assert root_of(ended).subject.rank == 0


def test_a_local_rank_of_one_of_several_nodes_is_no_rank() -> None:
    ended = "subprocess.CalledProcessError: Command '['python', '--local_rank=1']' returned non-zero exit status 1.\n"
    assert (
        root_of(
            f"$ torchrun --nnodes=2 a.py\nTraceback (most recent call last):\n{ended}"
        ).subject.rank
        is None
    )


def test_the_gpu_of_an_xid_is_the_rank_with_its_bus_number() -> None:
    setup = "".join(
        f"n7:{800 + rank}:900 [{rank % 8}] NCCL INFO comm 0x7f rank {rank} nranks 16 cudaDev "
        f"{rank % 8} nvmlDev {rank % 8} busId {bus} commId 0x1 - Init COMPLETE\n"
        for rank, bus in ((8, "3b000"), (9, "101c0"))
    )
    for pci, rank in (("0000:3b:00", 8), ("0000:10:1c", 9), ("0000:5d:00", None)):
        root = root_of(
            f"{setup}n7 kernel: NVRM: Xid (PCI:{pci}): 79, GPU has fallen off the bus.\n"
        )
        assert (root.cause, root.subject.rank) == ("gpu-fell-off-bus-xid-ecc", rank)


def test_the_gpus_of_one_host_are_not_those_of_another() -> None:
    setup = (
        "n7:808:900 [0] NCCL INFO comm 0x7f rank 8 nranks 16 cudaDev 0 busId 3b000 - Init START\n"
        "RANK=8 LOCAL_RANK=0\n"
    )
    fault = "[pod/n8/main] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert root_of(setup, fault).subject.rank is None
    ended = "[pod/n8/main] ['python', '--local_rank=0'] exits with return code = -9\n"
    assert root_of(setup, ended).subject.rank is None


def test_a_pod_with_one_rank_is_that_rank_if_every_pod_has_one() -> None:
    names = ("job-master-0", "job-worker-0", "job-worker-1")
    error = (
        "[pod/job-worker-0/main] Traceback (most recent call last):\n"
        '[pod/job-worker-0/main]   File "/w/a.py", line 3, in load\n'
        "[pod/job-worker-0/main] KeyError: 'caption'\n"
    )

    def started(ranks: tuple[int, ...]) -> str:
        pods = zip(names, ranks, strict=True)
        return "".join(f"[pod/{pod}/main] RANK={rank} WORLD_SIZE=3\n" for pod, rank in pods)

    assert root_of(started((0, 1, 2)) + error).subject.rank == 1
    assert root_of(started((0, 8, 16)) + error).subject.rank is None  # pods of eight GPUs


def test_the_table_of_failures_names_the_rank_of_a_pid() -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-03-03_12:10:10\n"
        "  host      : n2\n  rank      : 11 (local_rank: 3)\n  exitcode  : -9 (pid: 812)\n"
    )
    assert root_of(table, f"[812331.121000] {KILL}").subject.rank == 11


def test_lightnings_report_names_the_rank_that_ended_first() -> None:
    error = (
        'Traceback (most recent call last):\n  File "/w/a.py", line 3, in load\n'
        "KeyError: 'caption'\n"
    )
    ended = "[rank: 3] Child process with PID 51822 terminated with code 1. Forcefully ends all\n"
    assert root_of(error + ended).subject.rank == 3


def test_the_device_in_nccls_prefix_is_no_world_size() -> None:
    raw = b"n1:5:9 [7] NCCL INFO Bootstrap: world_size 4\n"
    file = EvidenceFile("log.txt", EvidenceKind.LOG, len(raw), lambda: io.BytesIO(raw))
    assert LogIndex(read_logs([file])).world_size == 4

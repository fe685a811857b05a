"""ENV014 process-limit."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

PROCESS_LIMIT = Cause(
    code="ENV014",
    name="process-limit",
    summary="The job cannot start more processes or threads: a limit of the user, the cgroup or "
    "the kernel is reached.",
    what_happens="Ranks, loader workers and the threads of OpenMP, NCCL and the autograd engine "
    "all count against RLIMIT_NPROC, the cgroup's pids controller and kernel.threads-max. At the "
    "limit fork and pthread_create fail with EAGAIN wherever they are called.",
    shows_before="A small pids.max (Kubernetes sets one for every pod, docker with --pids-limit), "
    "`ulimit -u` of a few thousand on a login host, a small stack limit.",
    shows_during="Some ranks never start, or a loader starts fewer workers; pids.current is near "
    "pids.max.",
    shows_after="`Resource temporarily unavailable`, `can't start new thread`, `OpenBLAS "
    "blas_thread_init: pthread_create failed`, or libgomp's `Thread creation failed`, on the rank "
    "that reached the limit.",
    known_misses="The number of threads that a job will have is an estimate. RLIMIT_NPROC does "
    "not apply to root, and limits of another user namespace are not visible.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="process-limit",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="the process cannot start another process or thread",
            patterns=(
                "can't start new thread|libgomp: Thread creation failed|OMP: Error #34",
                (
                    r"unable to create (?:new )?native thread|what\(\): {1,3}Resource temporarily "
                    r"unavail"
                ),
                (
                    r"(?:pthread_create|v?fork|clone3?)\b.{0,60}Resource temporarily "
                    "unavailable"
                ),
                (
                    r"BlockingIOError: \[Errno 11\] Resource|fork rejected by pids "
                    "controller|blas_thread_init: RLIMIT_NPROC"
                ),
            ),
            examples=(
                "RuntimeError: can't start new thread",
                (
                    "OpenBLAS blas_thread_init: pthread_create failed for thread 34 of "
                    "64: Resource temporarily unavailable\n"
                    "Segmentation fault (core dumped)"
                ),
                "run.sh: fork: retry: Resource temporarily unavailable",
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                "kernel: cgroup: fork rejected by pids controller in /kubepods/pod4",
                (
                    "g++: fatal error: cannot execute 'cc1plus': vfork: Resource "
                    "temporarily unavailable\n"
                    "ninja: build stopped: subcommand failed.\n"
                    "RuntimeError: Error building extension 'kernels'"
                ),
            ),
            counter_examples=(
                "logging: BlockingIOError: [Errno 11] write could not complete without blocking",
                "max user processes                  (-u) 4096",
            ),
            precedence=-2,
        ),
    ),
    remedies=(
        automatic(
            "Show the limit and the usage of the cgroup.",
            "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current; ulimit -u",
        ),
        disruptive("Start the container with a higher limit.", "docker run --pids-limit=-1 IMAGE"),
        disruptive("Use fewer threads per rank.", "export OMP_NUM_THREADS=4"),
    ),
    sources=("Linux: Documentation/admin-guide/cgroup-v2.rst, PID", "setrlimit(2)"),
)

"""MEM003 host-oom-killed."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import AnchoredPattern, LogSignal, Tier
from holdfast.core.treatments import Treatment

HOST_OOM_KILLED = Cause(
    code="MEM003",
    name="host-oom-killed",
    summary="Host memory or the cgroup limit was exceeded, and the kernel killed the process with "
    "SIGKILL.",
    what_happens="Loader workers times ranks, cached datasets, checkpoints assembled in host "
    "memory or pinned buffers exceed the limit. The out-of-memory killer selects a process of the "
    "cgroup, often a rank or a loader worker, and ends it without any message from it.",
    shows_before="memory.max of the cgroup is little above the memory of one rank times the "
    "number of ranks; the scheduler's `--mem` is smaller than the data that all ranks cache.",
    shows_during="memory.current near memory.max; memory.pressure high; ranks in reclaim, slow "
    "before they die.",
    shows_after="Exit status -9 (137 from a shell or container) and the counter oom_kill in the "
    "cgroup's memory.events, or the kernel's `Out of memory: Killed process ...`, or the "
    "scheduler's OUT_OF_MEMORY. torchrun shows -9 and no reason; the survivors' tracebacks about "
    "a closed connection are longer.",
    known_misses="The counters decide: -9 with an increased counter is this cause, without one it "
    "is rank-killed. A counter applies to the whole cgroup, so a loader worker killed at the same "
    "time can be mistaken for the rank. Kernel logs are mostly not readable from a container.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
        EvidenceSource.PLAN,
    ),
    signals=(
        LogSignal(
            name="oom-killer",
            tier=Tier.MACHINE,
            confidence=0.95,
            sentence="the out-of-memory killer ended a process for lack of host memory",
            patterns=(
                "Out of memory: Killed? process|Memory cgroup out of memory|invoked oom-killer",
                "oom-kill:|oom_reaper|low on resource: memory|TERM_MEMLIMIT|PBS: job killed: v?mem",
                "Exceeded (?:job|step) memory limit|exceeded memory limit .{0,60}being killed",
                "OOMKilled|[Oo]om[-_][Kk]ill event|cgroup out-of-memory handler|OUT_OF_MEMORY",
                (
                    r"ray\.exceptions\.OutOfMemory|killed due to (?:the node running low on "
                    r"memory|memory pressure)"
                ),
            ),
            examples=(
                "kernel: Out of memory: Killed process 4711 (python) total-vm:9000000kB",
                (
                    "slurmstepd: error: Detected 1 oom_kill event in StepId=811.0. Some of the "
                    "step tasks have been OOM Killed."
                ),
                ("slurmstepd: error: Step 811.0 exceeded memory limit (9000 > 8000), being killed"),
                (
                    "3 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers "
                    "crashed"
                ),
            ),
        ),
        LogSignal(
            name="host-memory",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="host memory could not be allocated",
            patterns=(
                ("DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory|std::bad_alloc"),
                r"Arr(?:ay|ow)MemoryError|Unable to allocate [\d.]+ [KMGT]iB for an array",
                "^MemoryError|: MemoryError",
                r"java\.lang\.OutOfMemoryError|Java heap space|JavaScript heap out of memory",
            ),
            examples=(
                (
                    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 9.0 GiB for "
                    "an array with shape (900, 900)"
                ),
                "java.lang.OutOfMemoryError: Java heap space",
            ),
        ),
        LogSignal(
            name="killed",
            tier=Tier.CRASH,
            confidence=0.5,
            sentence="a process was killed by SIGKILL",
            patterns=(
                r"SIGKILL|exitcode\s*: -9|exit code:? 137|exitcode=-9|[Ss]ignal 9\b|: Killed\b",
                AnchoredPattern(
                    expression=r"^(?:.{1,200}: line \d+: +\d+ )?Killed(?: {2}.*)?$",
                    find=r"\bKilled\b",
                ),
            ),
            examples=("run.sh: line 7: 4711 Killed                  python fit.py",),
        ),
    ),
    log_examples=(
        (
            "[2026-02-03 04:05:06,027] [ERROR] [launch.py:325:sigkill_handler] ['python', "
            "'-u', 'fit.py'] exits with return code = -9"
        ),
    ),
    alternatives=("rank-killed", "peer-lost"),
    treatment=Treatment.HOST_MEMORY,
    remedies=(
        automatic(
            "Read the counters of the job's cgroup.",
            "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory.max",
        ),
        by_hand(
            "Use fewer loader workers or a smaller prefetch factor; a memory-mapped dataset "
            "instead of copies."
        ),
        by_hand(
            "Request more memory per task from the scheduler, including that of the loader workers."
        ),
        RESTART,
    ),
    sources=(
        "Linux: Documentation/admin-guide/cgroup-v2.rst, memory.events",
        "pytorch/pytorch#13246",
    ),
)

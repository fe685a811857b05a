"""PROC003 segfault-in-worker."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

SEGFAULT_IN_WORKER = Cause(
    code="PROC003",
    name="segfault-in-worker",
    summary="A rank crashed in native code (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL) for an "
    "unknown reason.",
    what_happens="A C or C++ extension, a driver library, a mismatched binary or damaged memory "
    "crashes the process. There is no Python traceback unless faulthandler is enabled, which "
    "`holdfast run` does: the verdict has the line of the crash.",
    shows_before="Binaries built for another torch, CUDA or CPU; native packages newer than the "
    "image.",
    shows_during="The process has ended with a negative status and the others wait or lose their "
    "connection. The trace file contains the last collective and its line.",
    shows_after="Exit status -11 (-6, -7, -8, -4), `Fatal Python error: Segmentation fault` with "
    "stacks if faulthandler is enabled, a core file, and a line in the kernel log with the "
    "library's name.",
    known_misses="torch's NCCL watchdog and gloo also end a process with abort (-6): if the ranks "
    "diverged before, that mismatch is named instead. SIGBUS with a full /dev/shm is "
    "shm-too-small. Out of memory is -9.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="segfault",
            tier=Tier.CRASH,
            confidence=0.7,
            sentence="a process crashed in native code",
            patterns=(
                (
                    r"[Ss]egmentation fault|SIGSEGV|[Ss]ignal(?: code)?:? 11\b|exitcode: -11"
                    r"|exit code 139"
                ),
                (
                    r"double free (?:detected|or corruption)|corrupted (?:size vs\. prev_size"
                    r"|double-linked list)|\b(?:free|malloc|realloc|munmap_chunk"
                    r"|malloc_consolidate)\(\): "
                ),
                (
                    r"\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*|Fatal glibc error: "
                    r"|[Aa]ttempt to free invalid pointer|pure virtual method called"
                ),
                r"ERROR: (?:Address|Thread|Memory|Leak)Sanitizer: |\bSEGV on unknown address",
                r"fatal error has been detected by the Java Runtime Environment",
                r"fatal error: unexpected signal during runtime execution|Segfault encountered",
                r"(?:python[\w.]{0,12}|pt_\w{1,13})\[\d+\]: segfault at ",
            ),
            examples=(
                (
                    "E0203 04:05:07 77 torch/distributed/elastic/multiprocessing/api.py:869] "
                    "failed (exitcode: -11) local_rank: 3 (pid: 82) of binary: python"
                ),
                "double free or corruption (out)\nfree(): double free detected in tcache 2",
                "[rank2]: *** stack smashing detected ***: terminated",
                "python: corrupted double-linked list (not small)",
            ),
        ),
        LogSignal(
            name="crashed",
            tier=Tier.CRASH,
            confidence=0.45,
            sentence="a process crashed in native code",
            patterns=(
                (
                    r"SIG(?:ILL|FPE|TRAP|SYS)\b|Illegal instruction|Floating point exception"
                    r"|Trace/breakpoint trap"
                ),
                r"traps: (?:python[\w.]{0,12}|pt_\w{1,13})\[\d+\]:? (?:trap|general protection)",
            ),
            examples=("kernel: traps: python[4711] trap invalid opcode ip:7f1 sp:7ff error:0",),
        ),
        LogSignal(
            name="native-check-failed",
            tier=Tier.CRASH,
            confidence=0.55,
            sentence="a check in native code failed, and the process aborted",
            patterns=(
                r": Assertion [`'].{1,300}' failed",
                r"\bF\d{4} \d\d:\d\d:\d\d|: F \S{1,200}\.(?:cc|cpp|h):\d+\] ",
                r"\.(?:cc|cpp|cu|h|hpp):\d+\]? Check failed: |\*\*\* Check failure stack trace",
                r"thread '[^']{0,80}' (?:\(\d+\) )?panicked at|LLVM ERROR: ",
                r"PLEASE submit a bug report to .{0,120}crash backtrace",
                r"^panic: (?:runtime error|\S)|^fatal error: all goroutines are asleep",
            ),
            examples=(
                (
                    "fit: ../src/ucp/core/ucp_worker.c:812: ucp_worker_progress: Assertion "
                    "`worker->inprogress++ == 0' failed."
                ),
                "F0203 04:05:06.000000  4711 gpu_timer.cc:81] Check failed: start != stop ",
                "2026-02-03 04:05:06.000007: F external/xla/dso_loader.cc:81] Could not load",
                (
                    "thread '<unnamed>' panicked at src/shards.rs:88:14:\n"
                    "index out of bounds: the len is 4 but the index is 7"
                ),
            ),
            counter_examples=(
                "I0203 04:05:06.000000  4711 gpu_timer.cc:81] all checks passed",
                "INFO: assertion of the configuration passed",
            ),
        ),
        LogSignal(
            name="aborted",
            tier=Tier.SILENCE,
            confidence=0.4,
            sentence="a process aborted in native code without a reason",
            patterns=(
                (
                    r"SIGABRT|exitcode\s*: -6|Signal 6|Aborted {1,40}\(core dumped\)|Fatal "
                    r"Python error: "
                ),
                "terminate called after throwing an instance of",
                r"libc\+\+abi: terminating|Unhandled exception caught in c10/util/AbortHandler",
            ),
            examples=("Fatal Python error: Aborted",),
        ),
    ),
    log_examples=("container trainer terminated: Reason: Error, Exit Code:    139",),
    alternatives=("gpu-hw-fault", "comm-config-bad"),
    may_be_consequence=True,
    remedies=(
        disruptive("Get the stack of the crash.", "PYTHONFAULTHANDLER=1 holdfast run SCRIPT"),
        disruptive(
            "Keep a core file and open it.", "ulimit -c unlimited; gdb -batch -ex bt python CORE"
        ),
        by_hand("Rebuild native extensions for the installed torch."),
        RESTART,
    ),
    sources=("Python: faulthandler", "man 7 signal"),
)

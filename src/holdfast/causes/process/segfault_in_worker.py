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
                    r"double free detected|free\(\): invalid|malloc\(\): |corrupted size vs\. "
                    r"prev_size|munmap_chunk\(\)"
                ),
                r"(?:python[\w.]{0,12}|pt_\w{1,13})\[\d+\]: segfault at ",
            ),
            examples=(
                (
                    "E0203 04:05:07 77 torch/distributed/elastic/multiprocessing/api.py:869] "
                    "failed (exitcode: -11) local_rank: 3 (pid: 82) of binary: python"
                ),
                "double free or corruption (out)\nfree(): double free detected in tcache 2",
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

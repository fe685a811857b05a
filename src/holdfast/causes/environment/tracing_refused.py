"""ENV017 tracing-refused."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

TRACING_REFUSED = Cause(
    code="ENV017",
    name="tracing-refused",
    summary="This host does not allow inspecting a job's processes from outside.",
    what_happens="The stack of a stuck rank is read from its memory, which needs ptrace "
    "permission. Yama's ptrace_scope, a container without CAP_SYS_PTRACE or a different user id "
    "deny it. holdfast then requests a stack dump from the rank itself, which fails while the "
    "rank is inside a long native call.",
    shows_before="`/proc/sys/kernel/yama/ptrace_scope` is 2 or 3, or is 1 without CAP_SYS_PTRACE.",
    shows_during="`holdfast attach` and py-spy report that reading the stack is not permitted.",
    shows_after="A verdict without the source line of a rank that hangs in native code.",
    known_misses="A system-call filter (seccomp) can deny it too and is not checked; `holdfast "
    "run` starts the ranks itself and lets its watcher trace them where Yama allows that.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        disruptive(
            "Start the container with the permission to trace.",
            "docker run --cap-add SYS_PTRACE IMAGE",
        ),
        by_hand(
            "Allow processes of one user to trace each other.",
            "sysctl -w kernel.yama.ptrace_scope=0",
        ),
    ),
    sources=("Linux: Documentation/admin-guide/LSM/Yama.rst", "py-spy: README, permissions"),
)

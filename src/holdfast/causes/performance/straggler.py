"""PERF001 straggler."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

STRAGGLER = Cause(
    code="PERF001",
    name="straggler",
    summary="One rank is slower than the others in every step; no rank hangs, but all wait for it.",
    what_happens="A collective is as fast as its slowest member. A throttled GPU, a busy core, a "
    "slow disk or more work makes one rank arrive last each time, and all GPUs run at its speed.",
    shows_before="Clocks, temperatures, power limits or PCIe widths that differ from the other "
    "hosts'; other jobs on the host; a rank 0 that also logs and evaluates.",
    shows_during="Steps advance. The trace files show the same rank entering each collective "
    "last, by about the same time, and it computes in between with a changing stack. holdfast "
    "waits for it, and does not report a hang.",
    shows_after="Throughput below the earlier or expected one; no error. All other GPUs show high "
    "utilization, because they wait.",
    known_misses="The data loader, garbage collection and throttling are named as reasons where "
    "they differ from the other ranks; other reasons are not. A GPU of a kind of its own in a job "
    "with unlike GPUs is not judged. A rank that waits for a peer outside the trace files "
    "(storage, a lock) shows the same symptoms. Pipeline stages are late by design. A straggler "
    "that exceeds a timeout is watchdog-timeout-straggler.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.DUMP,
        EvidenceSource.HOST,
    ),
    may_be_consequence=True,
    echo_in_logs=True,
    treatment=Treatment.SLOW_HOST,
    remedies=(
        automatic(
            "Compare clocks, temperatures and throttle reasons between hosts.",
            "nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE",
        ),
        by_hand(
            "Find work that only this rank does, and move it after the step or to another process."
        ),
        DRAIN,
    ),
    sources=(
        "ByteRobust, arXiv 2509.16293",
        "NVIDIA/Megatron-LM#4662",
        "deepspeedai/DeepSpeed#1617",
    ),
)

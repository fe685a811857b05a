"""PERF007 processors-too-few."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

PROCESSORS_TOO_FEW = Cause(
    code="PERF007",
    name="processors-too-few",
    summary="The workers of a host have too few CPU cores, or share them with other processes.",
    what_happens="A rank also computes on the CPU: it launches kernels, reduces over gloo, "
    "decodes data. If ranks and loader workers outnumber the cores, they wait for each other; a "
    "quota (cpu.max) stops the whole cgroup until its period ends, up to 100 ms; an inherited "
    "affinity restricts all ranks to a few cores.",
    shows_before="`nproc` below the number of workers; `nr_throttled` in cpu.stat; a load above "
    "the number of cores before the job starts.",
    shows_during="All ranks are equally slow, or those of one host are; GPUs idle in between.",
    shows_after="Throughput below that of other hosts, and no error.",
    known_misses="Threads outnumber workers: OMP_NUM_THREADS times the ranks counts. Processes "
    "that wait for a disk also count as load.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Show which cores may be used, and which processes use them.",
            "nproc; uptime; top -b -n 1 | head -20",
        ),
        disruptive(
            "Request more cores per task from the scheduler.", "sbatch --cpus-per-task=8 job.sh"
        ),
        disruptive("Use fewer threads per rank.", "export OMP_NUM_THREADS=1"),
    ),
    sources=("Linux: Documentation/scheduler/sched-bwc.rst", "sched_setaffinity(2)"),
)

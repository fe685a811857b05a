"""PROC000 no-failure."""

from __future__ import annotations

from holdfast.causes.remedies import automatic
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

NO_FAILURE = Cause(
    code="PROC000",
    name="no-failure",
    summary="Nothing failed: the job is healthy, or it printed warnings that only look serious.",
    what_happens="All ranks advance, or have ended with status 0. Many lines that look like "
    "failures are harmless: `Abort COMPLETE` and `Connection closed by localRank` at the end of "
    "an NCCL job, `No device id is provided`, `destroy_process_group() was not called`, "
    "`ibv_set_ece failed`, `Failed to open libibverbs`, `No plugin found`, socket warnings with "
    "errno 97, the OMP_NUM_THREADS notice of torchrun, a model that was `not saved` because of an "
    "option, and a loss that spikes and recovers.",
    shows_before="Nothing.",
    shows_during="At least one rank advances within the stall limit, or the rank that the others "
    "wait for is in a phase whose budget is not exceeded: first step, compilation, checkpoint, "
    "evaluation. A rank that computes is slow, not stuck.",
    shows_after="Exit status 0 on every rank, and a log that continues, or ends as that program "
    "normally ends.",
    known_misses="Healthy means that no failure was observed: wrong values "
    "(silent-corruption-by-misaligned-collectives, replicas-diverge) do not stop a job. A gloo "
    "rank that ends without destroy_process_group() sometimes aborts (-6) after all its work was "
    "done.",
    evidence_sources=(EvidenceSource.LOG,),
    log_examples=(
        (
            "[W203 04:05:06.1 socket.cpp:697] [c10d] The client socket cannot be "
            "initialized (errno: 97 - Address family not supported by protocol)."
        ),
        "n1:5:9 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 10 - Abort COMPLETE",
        (
            "n1:5:9 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
            "training finished"
        ),
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    ),
    remedies=(
        automatic(
            "Nothing to do. To keep the log quiet, destroy the group at the end and set "
            "device_id: `dist.destroy_process_group()`."
        ),
    ),
    sources=(
        "NVIDIA/nccl: NCCL INFO lines at communicator abort",
        "torch: distributed_c10d.py warnings",
    ),
)

"""ENV011 variable-set-too-late."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_SET_TOO_LATE = Cause(
    code="ENV011",
    name="variable-set-too-late",
    summary="The program sets a variable after its reader has read it, so the value has no effect.",
    what_happens="Most variables are read once: OMP_NUM_THREADS and TORCH_DISTRIBUTED_DEBUG when "
    "torch is imported, CUDA_VISIBLE_DEVICES at the first use of CUDA, MASTER_ADDR, TORCH_NCCL_* "
    "and GLOO_* by init_process_group, NCCL_* when NCCL creates its first communicator. "
    "os.environ can be changed at any time, without a warning.",
    shows_before="In the source, the assignment is below the import or the call. `holdfast env "
    "--scan` checks the order.",
    shows_during="Nothing: the job behaves as if the variable were not set.",
    shows_after="Nothing. With NCCL_DEBUG=INFO, NCCL prints what it read.",
    known_misses="The order is checked within one file, without the effects of imported modules; "
    "threads, callbacks and frameworks are not followed.",
    evidence_sources=(
        EvidenceSource.ENVIRONMENT,
        EvidenceSource.SOURCE,
    ),
    remedies=(
        disruptive(
            "Set it where the job is started, or at the top of the program, above `import torch`.",
            "env OMP_NUM_THREADS=8 holdfast run SCRIPT",
        ),
    ),
    sources=(
        "torch: torch/distributed/distributed_c10d.py, rendezvous.py",
        "NVIDIA/nccl: src/misc/param.cc",
    ),
)

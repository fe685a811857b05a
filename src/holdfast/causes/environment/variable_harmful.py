"""ENV010 variable-harmful."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLE_HARMFUL = Cause(
    code="ENV010",
    name="variable-harmful",
    summary="A variable is set that reduces speed, hides errors, or was left over from debugging.",
    what_happens="NCCL_P2P_DISABLE=1, a forced NCCL_ALGO, CUDA_LAUNCH_BLOCKING=1 and "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL help to locate a fault. Left in a script they slow the job "
    "down by a multiple, and forums recommend them as fixes. TORCH_NCCL_ASYNC_ERROR_HANDLING=0 "
    "and TORCH_NCCL_BLOCKING_WAIT=1 disable what ends a hung job.",
    shows_before="The variable in the environment, in a script or in an image.",
    shows_during="Low bandwidth, GPUs that wait for each other, no overlap of communication with "
    "computation.",
    shows_after="Nothing in the log, but the job was too slow, or a hang was never ended.",
    known_misses="Some hosts need one of them (peer-to-peer through a virtual machine's IOMMU "
    "hangs); then the setting is right and the finding can be ignored.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(disruptive("Remove it, and measure before and after.", "holdfast bench"),),
    sources=(
        "NVIDIA NCCL user guide: Environment Variables",
        "torch: torch/distributed/distributed_c10d.py",
    ),
)

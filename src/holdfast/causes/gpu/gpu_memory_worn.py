"""GPU009 gpu-memory-worn."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

GPU_MEMORY_WORN = Cause(
    code="GPU009",
    name="gpu-memory-worn",
    summary="A GPU has bad memory that was retired, waits for a reset to be retired, or cannot be "
    "retired.",
    what_happens="The driver takes bad rows (Ampere and later) or pages (older GPUs) out of use. "
    "The replacement takes effect only when the GPU is reset; until then the bad memory may be "
    "used. When a bank has no spare rows left, the replacement fails.",
    shows_before="`Pending: Yes` or `Remapping Failure Occurred: Yes` in `nvidia-smi -q -d "
    "ROW_REMAPPER`, `Pending Page Blacklist: Yes` in PAGE_RETIREMENT; uncorrectable errors in the "
    "aggregate count.",
    shows_during="Nothing, until the bad memory is read: then Xid 48, 63, 64, 94 or 95, and the "
    "rank dies.",
    shows_after="`CUDA error: uncorrectable ECC error encountered` on one rank.",
    known_misses="Corrected errors and rows that were replaced in time are normal in a large "
    "fleet and are not reported. GPUs without ECC report no memory errors.",
    evidence_sources=(EvidenceSource.HOST,),
    treatment=Treatment.BAD_HOST,
    remedies=(
        automatic("Read the counters.", "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"),
        disruptive(
            "Reset the GPU while no process uses it; the replacement then takes effect.",
            "nvidia-smi --gpu-reset -i INDEX",
        ),
        by_hand("Have the GPU replaced if a row replacement failed, or bad rows reappear."),
        DRAIN,
    ),
    sources=(
        "NVIDIA: GPU memory error management (row remapping)",
        "NVIDIA: Dynamic page retirement",
    ),
)

"""PERF011 precision-without-hardware."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

PRECISION_WITHOUT_HARDWARE = Cause(
    code="PERF011",
    name="precision-without-hardware",
    summary="A number format is used that a GPU does not support in hardware, so it is emulated.",
    what_happens="bf16 needs compute capability 8.0, fp8 needs 8.9. On an older GPU torch does not "
    "fail: it converts, multiplies in fp32 and converts back, at a fraction of the speed of the "
    "fp16 units. In a job with GPUs of several kinds all ranks wait for those without support.",
    shows_before="A setup with bf16 on V100, T4 or RTX 20 cards, or with fp8 on A100. Check the "
    "compute capability, not the GPU's name; `torch.cuda.is_bf16_supported()` returns True even "
    "if it is emulated.",
    shows_during="Steps several times as long as planned, with the GPU busy throughout.",
    shows_after="Nothing but the time: results are right.",
    known_misses="Memory-bound operations lose little; a small model that waits for data anyway "
    "does not show it.",
    evidence_sources=(EvidenceSource.PLAN,),
    remedies=(
        by_hand(
            "Use what all GPUs support: fp16 with a gradient scaler below capability 8.0, bf16 "
            "from there on. `holdfast.agree_precision` agrees on it over all ranks and reports why."
        ),
        automatic(
            "Show the capability of each GPU.",
            "nvidia-smi --query-gpu=name,compute_cap --format=csv",
        ),
    ),
    sources=(
        "NVIDIA: CUDA C++ Programming Guide, compute capabilities",
        "torch.cuda.is_bf16_supported",
    ),
)

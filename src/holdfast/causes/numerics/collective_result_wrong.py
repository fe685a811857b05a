"""NUM004 collective-result-wrong."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

COLLECTIVE_RESULT_WRONG = Cause(
    code="NUM004",
    name="collective-result-wrong",
    summary="A collective completed, but elements of its result are wrong.",
    what_happens="Bits changed during the transfer: by memory without error correction, a faulty "
    "GPU, adapter or cable whose checksums do not detect it, or by a backend bug for this size, "
    "dtype or alignment. Training continues with wrong gradients.",
    shows_before="`holdfast bench` fills the buffers with numbers whose result is known and "
    "counts the elements that differ (`#wrong`).",
    shows_during="Nothing, or a loss that jumps; replicas may diverge.",
    shows_after="Results that are not reproducible; NaN without a reason in the model.",
    known_misses="One run does not find a rare fault: repeat it, for hours if a fault is "
    "suspected.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Repeat it by pairs of hosts, to find the host that all wrong pairs share.",
            "holdfast bench all --iters 1000",
        ),
        by_hand("Remove the host from the pool, and test its memory and GPUs."),
    ),
    sources=(
        "NVIDIA/nccl-tests: verifiable/",
        "Dixit et al., Silent Data Corruptions at Scale, arXiv 2102.11245",
    ),
)

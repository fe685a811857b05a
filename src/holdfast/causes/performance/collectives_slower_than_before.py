"""PERF005 collectives-slower-than-before."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

COLLECTIVES_SLOWER_THAN_BEFORE = Cause(
    code="PERF005",
    name="collectives-slower-than-before",
    summary="Collectives take longer than in a baseline that was measured on the same kind of "
    "machines.",
    what_happens="A link runs at a lower rate or loses packets, a collective uses another "
    "algorithm or transport than before (another version, variable or interface), a CPU is slower "
    "or shared, or other traffic uses the link. Every step of every job on these machines is "
    "affected.",
    shows_before="`holdfast bench --baseline FILE` takes longer than the baseline, by more than "
    "the tolerance, and for several sizes.",
    shows_during="Steps take longer, on all ranks equally, and no rank hangs.",
    shows_after="Throughput below the earlier one; no error.",
    known_misses="A measurement while another job runs is slow for that reason alone: measure "
    "again when the machines are idle. Small messages vary more than large ones.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Measure again, with nothing else running, and each pair of ranks separately.",
            "holdfast bench --pairs --baseline FILE",
        ),
        automatic(
            "Check the interfaces: rate, errors, drops, and which one is used.",
            "ip -statistics link; holdfast check",
        ),
        by_hand(
            "Compare versions of torch, NCCL and the driver, and variables, with those of "
            "the baseline."
        ),
    ),
    sources=(
        "NVIDIA/nccl-tests: NCCL_TESTS_MIN_BW",
        "deepspeedai/DeepSpeed#1617",
        "NVIDIA/Megatron-LM#4662",
    ),
)

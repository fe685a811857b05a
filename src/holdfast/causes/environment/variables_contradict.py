"""ENV009 variables-contradict."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

VARIABLES_CONTRADICT = Cause(
    code="ENV009",
    name="variables-contradict",
    summary="Two variables conflict: one makes the other ineffective, or they mean opposite "
    "settings.",
    what_happens="A setting from one debugging session stays next to that of the next: InfiniBand "
    "is disabled and its card named, peer-to-peer is off and its level set, a lower bound exceeds "
    "the upper one, an old and a new name have different values. The reader takes one of them by "
    "obscure rules; if NCCL_NET selects a network that is disabled, NCCL cannot start.",
    shows_before="Both names in one environment or script.",
    shows_during="The job is slower than it should be, or the requested call history is empty.",
    shows_after="`Error: network IB not found`, or a timeout without the requested dump.",
    known_misses="Variables that are combined only at run time, from a script and from the "
    "scheduler, are visible in the environment and not in files.",
    evidence_sources=(EvidenceSource.ENVIRONMENT,),
    remedies=(
        disruptive("Decide which one you need, and remove the other.", "unset NCCL_IB_DISABLE"),
    ),
    sources=(
        "NVIDIA/nccl: src/transport/net_ib/init.cc, src/graph/paths.cc",
        "torch: FlightRecorder.hpp",
    ),
)

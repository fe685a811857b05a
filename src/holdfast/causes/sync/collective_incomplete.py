"""SYNC015 collective-incomplete."""

from __future__ import annotations

from holdfast.causes.remedies import COMPARE_SEQUENCES, WATCH
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause, Remedy, Safety
from holdfast.core.treatments import Treatment

COLLECTIVE_INCOMPLETE = Cause(
    code="SYNC015",
    name="collective-incomplete",
    summary="All ranks entered one collective and it does not complete, and they share one host.",
    what_happens="The calls of the ranks agree, so no rank is missing. Within one host the data "
    "moves over loopback, shared memory or GPU links, so the network between hosts is not "
    "involved. What remains: an earlier call that differed and is no longer recorded, a kernel on "
    "a GPU that does not end, a blocked thread of the backend, or a GPU link (IOMMU, ACS).",
    shows_before="Collectives from several threads; uneven arguments in calls that ran long ago; "
    "GPU peer-to-peer access on a machine with an enabled IOMMU.",
    shows_during="All ranks wait in the same call, their stacks do not change, and no process is "
    "stopped.",
    shows_after="The timeout of the group on all ranks, at the same line.",
    known_misses="A collective that only takes long (hundreds of GB over a slow link) looks the "
    "same; it is reported as suspected, and acted on after --act-after.",
    evidence_sources=(
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
    ),
    may_recover=True,
    treatment=Treatment.SUSPECT,
    alternatives=("iommu-acs-p2p-hang", "collective-mismatch"),
    remedies=(
        Remedy(
            text="Show where the threads of the backend are.",
            command="py-spy dump --native --pid PID",
            safety=Safety.AUTOMATIC,
        ),
        COMPARE_SEQUENCES,
        WATCH,
    ),
    sources=("torch 2.13.0 with gloo, measured: 4 ranks on one host, network suspected",),
)

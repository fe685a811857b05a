"""PERF006 collectives-below-line-rate."""

from __future__ import annotations

from holdfast.causes.remedies import automatic
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

COLLECTIVES_BELOW_LINE_RATE = Cause(
    code="PERF006",
    name="collectives-below-line-rate",
    summary="The fastest collective reaches less than half the bandwidth of the link between the "
    "ranks.",
    what_happens="Bus bandwidth is defined so that it can be compared with the link rate. If it "
    "is far below, another limit applies: CPU copies (gloo over loopback), one connection on a "
    "fast network, small messages, PCIe instead of NVLink, TCP instead of RDMA.",
    shows_before="`holdfast bench` shows the efficiency.",
    shows_during="Collectives of large tensors take several times as long as their bytes divided "
    "by the link rate.",
    shows_after="Nothing but the time.",
    known_misses="The rate that the kernel reports may be that of a virtual interface, which is "
    "meaningless. On one host it is that of a memory copy, which no collective over sockets can "
    "approach.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Check whether another algorithm is faster here.",
            "holdfast bench --way all --max-bytes 64M",
        ),
        automatic(
            "Show the transport that NCCL uses: NET/Socket on hosts with InfiniBand is the "
            "usual finding.",
            "NCCL_DEBUG=INFO torchrun --nproc-per-node 8 -m holdfast bench",
        ),
    ),
    sources=("NVIDIA/nccl-tests: doc/PERFORMANCE.md",),
)

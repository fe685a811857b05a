"""NET002 network-fabric-fault."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, RESTART, automatic
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

NETWORK_FABRIC_FAULT = Cause(
    code="NET002",
    name="network-fabric-fault",
    summary="The network of a host, or the fabric between hosts, is broken or unstable; the "
    "configuration is right.",
    what_happens="A flapping port, a bad cable, a lost route, a switch that drops large packets "
    "or a partition stops the data of a collective. All ranks have entered it, and none completes "
    "it. TCP hides the fault for a long time: with the kernel's default of 15 retries a dead link "
    "becomes an error only after about 15 minutes.",
    shows_before="Errors and drops of the port (`ip -s link`, ethtool -S), a link rate below that "
    "of other hosts, an MTU that differs along the path: then small messages pass and large ones "
    "are lost.",
    shows_during="Every member is inside the same collective with the same arguments, no rank is "
    "missing and nothing advances; stacks do not change. This is the only pattern in which no "
    "rank is the root.",
    shows_after="`Connection timed out`, `Connection reset by peer` or `unhandled system error` "
    "on several ranks, often about one host; or a timeout on all ranks with equal sequence "
    "numbers. torchrun blames the rank that it reaped first.",
    known_misses="A rank whose GPU kernel is stuck looks the same from the host. So do concurrent "
    "NCCL communicators that starve each other although all ranks call them in the same order. "
    "Confidence is therefore low, and the faulty link cannot be identified from inside the job.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="ib-event",
            tier=Tier.NETWORK,
            confidence=0.75,
            sentence="a network link went down",
            patterns=(
                (
                    "NET/IB.{0,40}(?:[: ]async fatal event|Got async event|port error)|link "
                    "(?:is )?down"
                    "|Link Down"
                ),
                "carrier lost|NIC.{0,20}(?:down|flap)",
                r"Nic\(\d{1,3}\) is DOWN|QPs, or network interfaces are not up",  # Gaudi's HCL
            ),
            examples=(
                "n1:5:9 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
                (
                    "hcl_ibverbs.cpp::497(create_qp): The condition [ isNicUp(port) ] failed. "
                    "Nic(8) is DOWN, can't allocate connection"
                ),
            ),
            weighed=True,
        ),
    ),
    alternatives=("firewall-blocked-ports", "peer-lost"),
    may_be_consequence=True,
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic(
            "Read the error counters of each host's port, and compare hosts.",
            "ip -s -d link; ethtool -S INTERFACE | grep -iE 'err|drop|discard'",
        ),
        automatic(
            "Test the path with large packets that must not be fragmented.",
            "ping -M do -s 8972 -c 5 OTHER_HOST",
        ),
        DRAIN,
        RESTART,
    ),
    sources=(
        "NVIDIA/nccl#1524",
        "NVIDIA/nccl#2135",
        "pytorch/pytorch#175145",
        "ROCm/rccl#2191",
        "HabanaAI/HCL: hcl/src",
    ),
)

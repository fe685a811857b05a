"""GPU003 iommu-acs-p2p-hang."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

IOMMU_ACS_P2P_HANG = Cause(
    code="GPU003",
    name="iommu-acs-p2p-hang",
    summary="IOMMU, PCIe ACS, the driver or the topology breaks peer-to-peer transfers between "
    "GPUs.",
    what_happens="The driver offers peer-to-peer copies over PCIe. If the IOMMU translates "
    "addresses, or ACS routes every transaction through the root complex, the copies are lost or "
    "arrive corrupted. NCCL's first collective then hangs, or sums are wrong.",
    shows_before="IOMMU on (`intel_iommu=on` or `amd_iommu=on` without passthrough) and `ACSCtl: "
    "SrcValid+` on the bridges, with GPUs that communicate over PCIe; virtual machines without "
    "proper passthrough.",
    shows_during="All ranks of one host are in the same first collective, all GPUs show full "
    "utilization and low power, and nothing completes.",
    shows_after="A watchdog timeout at sequence 1 or 2 on every rank of the host, without a "
    "network error. A two-GPU copy test that returns wrong data confirms it.",
    known_misses="On a single host it looks like network-fabric-fault. That the job runs with "
    "NCCL_P2P_DISABLE=1 locates the fault; as a permanent setting it costs bandwidth.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="iommu-fault",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="IOMMU or PCIe ACS breaks the path between GPUs",
            patterns=(
                "DMAR:.{0,40}fault|IO_PAGE_FAULT|AMD-Vi: Event|ACS is enabled|PCIe ACS",
                "virtual(?:iz|is)ation.{0,40}P2P",
            ),
            examples=(
                (
                    "kernel: DMAR: [DMA Read] Request device [3b:00.0] fault addr 0xfe0 [fault "
                    "reason 0x06] PTE Read access is not set"
                ),
            ),
            precedence=-1,
        ),
        LogSignal(
            name="p2p-access",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="GPUs cannot access each other's memory directly",
            patterns=(
                "peer access is not supported|CUDA-P2P.{0,40}fail",
                "P2P.{0,40}(?:mapping|access).{0,40}(?:fail|timed)",
            ),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN Cuda failure 'peer access is not supported between "
                    "these two devices'"
                ),
            ),
        ),
        LogSignal(
            name="hip-ipc",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="GPUs cannot share memory between processes",
            patterns=("(?:hip|cuda)Ipc(?:Get|Open)MemHandle.{0,20}fail",),
            examples=(
                (
                    "n1:5:9 [1] /src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle "
                    "failed : invalid argument"
                ),
            ),
        ),
    ),
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic(
            "Show how the devices are connected, and whether ACS is on along the path.",
            "nvidia-smi topo -m; lspci -vvv | grep -i acsctl",
        ),
        disruptive(
            "Test once without peer-to-peer transfers; if the job then runs, fix the path "
            "instead of keeping this setting.",
            "NCCL_P2P_DISABLE=1 holdfast run SCRIPT",
        ),
        by_hand(
            "Disable ACS on the bridges, or boot with iommu=pt; for a virtual machine, "
            "contact the operator of the host."
        ),
    ),
    sources=(
        "NVIDIA/nccl#2079",
        "NVIDIA/nccl#257",
        "NVIDIA NCCL user guide: Troubleshooting, PCI Access Control",
    ),
)

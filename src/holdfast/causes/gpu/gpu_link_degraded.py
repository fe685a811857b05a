"""GPU010 gpu-link-degraded."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

GPU_LINK_DEGRADED = Cause(
    code="GPU010",
    name="gpu-link-degraded",
    summary="A GPU lost PCIe lanes, NVLinks or direct access to its neighbors: it works, but "
    "transfers are slow.",
    what_happens="A link runs with fewer lanes after a bad contact or riser, an NVLink stays "
    "down, or peer access is denied for some pairs. NCCL builds its rings from the available "
    "links, so the whole ring has the speed of its worst link.",
    shows_before="Current width below the maximum in `nvidia-smi -q` (the link speed drops when "
    "idle and is then no evidence), inactive links in `nvidia-smi nvlink -s`, pairs that differ "
    "in `nvidia-smi topo -p2p r`.",
    shows_during="Every collective of the host is slow; `holdfast bench` is below its baseline on "
    "groups with this GPU. NCCL_DEBUG=INFO shows rings over SHM or PHB that are P2P on other "
    "hosts.",
    shows_after="In the kernel log a fatal SXid of an NVSwitch, or `PCIe Bus Error`; otherwise "
    "nothing but the throughput.",
    known_misses="A slot with fewer lanes by design looks the same: on some boards, not on all, "
    "the maximum is then lower too. Virtual machines hide the bridges.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="switch-fault",
            tier=Tier.MACHINE,
            confidence=0.7,
            sentence="an NVSwitch or a PCIe link reports a fatal error",
            patterns=(
                (
                    r"SXid \(PCI:[\w:.]{1,20}\): \d+, Fatal|PCIe Bus Error: "
                    r"severity=Uncorrect\w+ \(Fatal\)"
                ),
            ),
            examples=(
                (
                    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 26 "
                    "Minion Link DLREQ interrupt"
                ),
                (
                    "pcieport 0000:64:00.0: PCIe Bus Error: severity=Uncorrectable "
                    "(Fatal), type=Transaction Layer"
                ),
            ),
            counter_examples=(
                (
                    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link "
                    "32 egress non-posted PRIV error"
                ),
            ),
        ),
    ),
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic("Compare the links of all GPUs.", "nvidia-smi topo -m; nvidia-smi nvlink -s"),
        by_hand(
            "Reseat the board or replace the riser; for NVLinks reset all GPUs of the host "
            "together."
        ),
        DRAIN,
    ),
    sources=(
        "NVIDIA NCCL user guide: Troubleshooting",
        "stas00/ml-engineering: compute/accelerator/nvidia",
    ),
)

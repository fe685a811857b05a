"""GPU002 gpu-fell-off-bus-xid-ecc."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

GPU_FELL_OFF_BUS_XID_ECC = Cause(
    code="GPU002",
    name="gpu-fell-off-bus-xid-ecc",
    summary="The driver reports the GPU as lost or corrupted: Xid, uncorrectable ECC, GSP "
    "timeout, off the bus.",
    what_happens="The driver detects that the device does not respond (Xid 79), that its firmware "
    "does not (119, 120), that memory has an uncorrectable error (48, 63, 64, 94, 95) or that "
    "NVLink failed (74). It destroys the contexts on the device; every further CUDA call of that "
    "rank fails.",
    shows_before="Xid lines in the kernel log from earlier jobs, rows that wait for a reset to be "
    "remapped (`nvidia-smi -q -d ROW_REMAPPER`), a device missing from nvidia-smi.",
    shows_during="The rank dies or its CUDA calls fail; nvidia-smi on that host hangs or reports "
    "`No devices were found` for that slot. With Xid 119, processes that use the driver enter "
    "uninterruptible sleep.",
    shows_after="`NVRM: Xid (PCI:...): 79 ...` in the kernel log with the time of the failure, "
    "and on the rank `CUDA error: uncorrectable ECC error encountered` or `device not found`. "
    "Ranks on other GPUs report a lost peer, or time out.",
    known_misses="Xid 13, 31 and 43 are usually caused by the program (cuda-kernel-fault). In a "
    "container the kernel log is often not readable; then the CUDA message is the only evidence.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="gpu-lost",
            tier=Tier.MACHINE,
            confidence=0.95,
            sentence="the driver lost a GPU",
            patterns=(
                "fallen off the bus|GPU is lost|Unable to determine the device handle for GPU",
                "GPU requires reset",
            ),
            examples=(
                (
                    "[Tue Feb  3 04:05:06 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=812, GPU "
                    "has fallen off the bus."
                ),
            ),
        ),
        LogSignal(
            name="ecc-uncorrectable",
            tier=Tier.MACHINE,
            confidence=0.95,
            sentence="a GPU has uncorrectable memory errors",
            patterns=(
                (
                    "uncorrectable ECC error|cudaErrorECCUncorrectable"
                    "|CUDA_ERROR_ECC_UNCORRECTABLE|[Dd]ouble.?[Bb]it ECC"
                ),
                r"row remap(?:ping)? (?:pending|failure)|Pending Page Retirement\s*: Yes",
            ),
            examples=("RuntimeError: CUDA error: device not ready due to row remap pending",),
            counter_examples=("Pending Page Retirement : No",),
        ),
        LogSignal(
            name="gsp-timeout",
            tier=Tier.MACHINE,
            confidence=0.95,
            sentence="a GPU no longer responds to the driver",
            patterns=(
                r"waiting for RPC response from GPU ?\d+ GSP|GSP RPC timeout",
                "The GPU likely needs to be reset",
            ),
            examples=(
                (
                    "NVRM: Xid (PCI:0000:9b:00): 119, pid=4021, name=python, Timeout waiting "
                    "for RPC response from GPU1 GSP! Expected function 76"
                ),
            ),
        ),
    ),
    alternatives=("gpu-hw-fault",),
    treatment=Treatment.BAD_HOST,
    remedies=(
        automatic(
            "Read the driver's messages on the host of the rank that failed first.",
            "dmesg -T | grep -iE 'NVRM|Xid|nvlink'",
        ),
        disruptive(
            "Reset the device while no process uses it; if it has fallen off the bus, only a "
            "reboot helps.",
            "nvidia-smi --gpu-reset -i INDEX",
        ),
        DRAIN,
    ),
    sources=("NVIDIA: XID Errors", "leptonai/gpud: components/accelerator/nvidia/xid"),
)

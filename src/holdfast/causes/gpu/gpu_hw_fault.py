"""GPU001 gpu-hw-fault."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, RESTART, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

GPU_HW_FAULT = Cause(
    code="GPU001",
    name="gpu-hw-fault",
    summary="A GPU or its NVLink is faulty, but the driver reports no Xid or ECC error.",
    what_happens="The device computes wrong values, hangs in a kernel, or loses a link now and "
    "then. Programs get an unknown CUDA error, an out-of-memory error at a barrier that allocates "
    "nothing, an illegal access in code that worked for weeks, or one GPU that is slower than the "
    "others.",
    shows_before="Sometimes nothing. Otherwise pending remapped rows, NVLink replay counters, a "
    "narrower PCIe link, or a short matrix-multiply test that is slow or wrong on this device "
    "only.",
    shows_during="The same host is involved each time, regardless of the rank that runs there. "
    "All ranks are in one collective, or the rank on that device is inside a CUDA call "
    "(synchronize, item) with an unchanged stack.",
    shows_after="`CUDA error: unknown error`, `unspecified launch failure` or a failed memory "
    "copy on one rank; the others time out. The job runs on other hosts: that is the evidence for "
    "such faults.",
    known_misses="One failure alone looks like a kernel bug; a hardware fault stays with the "
    "host, not with the rank. CUDA errors are reported later than they occur, so the line in the "
    "traceback is rarely the right one.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.DUMP,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="nvlink-error",
            tier=Tier.MACHINE,
            confidence=0.9,
            sentence="an NVLink failed",
            patterns=(
                (
                    "uncorrectable NVLink error|CUDA_ERROR_(?:NVLINK_UNCORRECTABLE|CONTAINED)"
                    "|P2P is disabled between NVLINK|NVLink: fatal error|NVLink error detected"
                ),
            ),
            examples=(
                (
                    "[rank4]: RuntimeError: CUDA error: uncorrectable NVLink error detected "
                    "during the execution"
                ),
            ),
        ),
        LogSignal(
            name="rocm-hardware",
            tier=Tier.MACHINE,
            confidence=0.8,
            sentence="the driver reset a GPU",
            patterns=(
                "HW Exception by GPU node|amdgpu: GPU reset|GPU reset begin",
                "HSA_STATUS_ERROR_(?:HARDWARE_)?EXCEPTION",
            ),
            examples=("HW Exception by GPU node-2 (Agent handle: 0x55d1c0) reason :GPU Hang",),
        ),
        LogSignal(
            name="cuda-unknown-error",
            tier=Tier.DEVICE,
            confidence=0.7,
            sentence="a GPU failed with an error that CUDA cannot identify",
            patterns=(
                "CUDA error: unknown error|CUDA error: hardware stack error",
                "an illegal instruction was encountered",
            ),
            examples=("[rank6]: RuntimeError: CUDA error: unknown error",),
        ),
        LogSignal(
            name="cuda-error-memory",
            tier=Tier.DEVICE,
            confidence=0.4,
            sentence="a GPU memory allocation outside torch's allocator failed",
            patterns=("(?:CUDA|HIP) error: out of memory",),
            examples=("[rank2]: RuntimeError: CUDA error: out of memory",),
        ),
        LogSignal(
            name="accelerator-fault",
            tier=Tier.MACHINE,
            confidence=0.85,
            sentence="the device reports a fault",
            patterns=(
                (
                    r"amdgpu .{0,80}ring \S{1,20} timeout|habanalabs .{0,80}(?:Going to "
                    "reset device|RAZWI|Failed to communicate with Device CPU|Device is NOT usable)"
                ),
                r"HBM MULTI BIT ECC|\bUCE ERROR\b|HCCS LINK ERROR",
            ),
            examples=(
                (
                    "kernel: amdgpu 0000:03:00.0: amdgpu: ring sdma0 timeout, signaled "
                    "seq=811, emitted seq=813"
                ),
                "kernel: habanalabs hl3: Going to reset device",
                "[   43.05] habanalabs hl2: Failed to communicate with Device CPU (CPU-CP timeout)",
                ("[rank2]: RuntimeError: NPU function error: UCE ERROR, error code is 507054"),
            ),
        ),
    ),
    alternatives=("gpu-fell-off-bus-xid-ecc", "gpu-oom-all-ranks"),
    may_be_consequence=True,
    treatment=Treatment.BAD_HOST,
    remedies=(
        disruptive(
            "Run the vendor's diagnostics on the suspect host while the job is stopped.",
            "dcgmi diag -r 3",
        ),
        DRAIN,
        RESTART,
    ),
    sources=(
        "bigscience-workshop/bigscience: chronicles of tr1 and tr11",
        "NVIDIA DCGM user guide: dcgmi diag",
        "HabanaAI/Setup_and_Install#1",
    ),
)

"""GPU005 cuda-kernel-fault."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

CUDA_KERNEL_FAULT = Cause(
    code="GPU005",
    name="cuda-kernel-fault",
    summary="A kernel failed on the device: a device-side assert, or an illegal or misaligned "
    "address.",
    what_happens="An index out of range (a token beyond the vocabulary, a label beyond the "
    "classes) or a bug in a custom kernel causes a fault on the device. The CUDA context is lost; "
    "each later call reports the same error, wherever it is.",
    shows_before="In the source, little: indices come from data. Comparing the largest token with "
    "the number of embedding rows before training finds the common case.",
    shows_during="The rank fails at a later synchronizing call; the others wait in the next "
    "collective.",
    shows_after="`device-side assert triggered`, preceded by an assertion with block and thread, "
    "or `an illegal memory access was encountered`; then c10 frames and, with NCCL, an abort with "
    "exit status -6. The traceback shows the line where the error was detected, not where it "
    "occurred.",
    known_misses="A device memory error gives the same message (gpu-hw-fault), but stays with the "
    "host. A full /dev/shm and mismatched collectives can also end in a segmentation fault.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="cuda-assert",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="a device-side assertion failed",
            patterns=(
                "device-side assert triggered|CUDA_ERROR_ASSERT|cudaErrorAssert|hipErrorAssert",
                r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion",
            ),
            examples=("[rank2]: RuntimeError: CUDA error: device-side assert triggered",),
            precedence=2,
        ),
        LogSignal(
            name="cuda-illegal-address",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="a kernel used an illegal address",
            patterns=(
                "an illegal memory access was encountered|misaligned address",
                "Memory access fault by GPU node|Memory exception on virtual address 0x",
                "HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)",
                "(?:aicore|vector core) exception",
                "operation not supported on global/shared address space|: invalid program counter",
                "CUDA_ERROR_(?:ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC)",
                "(?:cuda|hip)Error(?:IllegalAddress|MisalignedAddress|InvalidAddressSpace)",
            ),
            examples=(
                "[rank5]: RuntimeError: CUDA error: an illegal memory access was encountered",
                "Callback: Queue error - HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
                "Memory exception on virtual address 0x7f32000, node id 4 : Page not present",
                "[rank1]: RuntimeError: The device is abnormal: aicore exception",
                "F0203 04:05:06.000000 88 stream.cc:4] CUDA_ERROR_ILLEGAL_ADDRESS: fit_kernel",
            ),
            precedence=1,
        ),
        LogSignal(
            name="cuda-launch-failure",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="a kernel failed on the device",
            patterns=(
                "unspecified launch failure|CUDNN_STATUS_EXECUTION_FAILED",
                "CUBLAS_STATUS_EXECUTION_FAILED",
                "the launch timed out and was terminated",
                "CUDA_ERROR_LAUNCH_(?:FAILED|TIMEOUT)|(?:cuda|hip)ErrorLaunch(?:Failure|Timeout)",
            ),
            examples=("[rank1]: RuntimeError: CUDA error: unspecified launch failure",),
            precedence=1,
        ),
    ),
    log_examples=(
        (
            "[Tue Feb  3 04:05:06 2026] NVRM: Xid (PCI:0000:3b:00): 31, pid=812, "
            "name=python, MMU Fault"
        ),
    ),
    alternatives=("gpu-hw-fault",),
    remedies=(
        disruptive(
            "Run it once with synchronous launches: the traceback then shows the right line. "
            "Much slower.",
            "CUDA_LAUNCH_BLOCKING=1 holdfast run --nproc-per-node 1 SCRIPT",
        ),
        by_hand(
            "Run the failing batch on the CPU, where an index out of range is an ordinary "
            "exception."
        ),
    ),
    sources=("torch: c10/cuda/CUDAException.cpp", "ROCm: libhsakmt/src/events.c"),
)

"""GPU004 cuda-driver-mismatch."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

CUDA_DRIVER_MISMATCH = Cause(
    code="GPU004",
    name="cuda-driver-mismatch",
    summary="The driver is too old for the CUDA build, its parts do not match, or a driver "
    "service is not ready.",
    what_happens="A CUDA runtime needs a minimum driver version. The user-space library and the "
    "kernel module must have the same version: after an unattended upgrade they do not, until a "
    "reboot. On NVSwitch machines CUDA waits for the Fabric Manager, which must match the driver "
    "too.",
    shows_before="`nvidia-smi` fails or shows a lower CUDA version than torch was built for; "
    "/proc/driver/nvidia/version differs from the library; nvidia-fabricmanager is not active on "
    "an HGX host.",
    shows_during="Nothing hangs: the first CUDA call of every rank on that host fails.",
    shows_after="`The NVIDIA driver on your system is too old`, `Driver/library version "
    "mismatch`, `Error 802: system not yet initialized`, or torch.cuda.is_available() returns "
    "False and the program continues on the CPU.",
    known_misses="A job that falls back to the CPU only becomes slow. Error 802 right after boot "
    "disappears when the Fabric Manager has finished.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="driver-mismatch",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="the driver does not match the CUDA build",
            patterns=(
                "driver version is insufficient|NVIDIA driver on your system is too old",
                "unsupported display driver|CUDA driver initialization failed",
                (
                    "system not yet initialized|[Dd]river/library version mismatch|Failed "
                    "to initialize NVML"
                ),
                "couldn't communicate with the NVIDIA driver|Found no NVIDIA driver on your system",
                (
                    "CUDA_ERROR_(?:NOT_PERMITTED|SYSTEM_NOT_READY|SYSTEM_DRIVER_MISMATCH"
                    "|COMPAT_NOT_SUPPORTED)"
                ),
                (
                    "IMEX (?:daemon|domain|channel)s? .{0,40}(?:not "
                    "|fail|unavailable)|nvidia-imex.{0,40}[Ff]ail"
                ),
                (
                    r"nvidia-(?:persistenced|fabricmanager)(?:\.service)?.{0,60}(?:[Ff]ailed"
                    "|not running)"
                ),
                r"ibv_reg_mr\w* failed.{0,40}Bad address|nvidia[_-]peermem.{0,60}(?:not |[Ff]ail)",
                (
                    "hipErrorNoBinaryForGpu|HIP error: invalid device function"
                    "|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
                ),
                "forward compatibility was attempted",
                "device kernel image is invalid|error in the Fabric Manager|_NO_BINARY_FOR_GPU",
                r"lib(?:cuda|nvidia-ml)\.so[.\d]*: (?:cannot open|file not found)",
                "nvidia-container-cli: (?:initialization|detection|mount|ldcache) error",
                r"cuDNN version incompatibility|CUDNN_STATUS_\w{0,20}(?:ARCH|VERSION)_MISMATCH",
                "no kernel image is available|unsupported toolchain|driver/runtime version",
                "nv-fabricmanager.{0,60}(?:[Ee]rror|[Ff]ail)",
                (
                    r"CUDA unknown error - this may be due to|cudaGetDeviceCount\(\)"
                    r"|[Ff]abric ?[Mm]anager.{0,60}(?:not |[Ff]ail|[Ee]rror|mismatch)"
                ),
            ),
            examples=(
                (
                    "RuntimeError: The NVIDIA driver on your system is too old (found version "
                    "11040)."
                ),
                (
                    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: "
                    "system not yet initialized"
                ),
                ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu."),
                (
                    "nvidia-container-cli: initialization error: nvml error: "
                    "driver/library version mismatch: unknown."
                ),
                "Failed to initialize NVML: Driver/library version mismatch",
                "[rank1]: ImportError: libcuda.so.1: cannot open shared object file: No such file",
                (
                    "nvidia-container-cli: initialization error: driver error: failed to process "
                    "request"
                ),
                (
                    "n1:5:9 [0] NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of "
                    "size 2097152 : CUDA error 401.This is usually caused by a system or "
                    "configuration error in the Fabric Manager or NVSwitches."
                ),
                (
                    "RuntimeError: (Cu failure: operation not permitted) Call to "
                    "cuMemCreate failed: CUDA_ERROR_NOT_PERMITTED"
                ),
                (
                    "nvidia-imex[811]: IMEX domain is not ready: nvidia-imex failed to "
                    "connect to node 10.0.0.7"
                ),
                "systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
                "[rank0]: RuntimeError: HIP error: invalid device function",
                "n1:5:9 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
            ),
        ),
        LogSignal(
            name="nccl-cuda-error",
            tier=Tier.NETWORK,
            confidence=0.3,
            sentence="a CUDA call of NCCL failed",
            patterns=(
                "unhandled cuda error|ncclUnhandledCudaError|NCCL WARN (?:Cuda|HIP) failure",
            ),
            examples=(
                # RCCL
                "n1:5:9 [0] src/enqueue.cc:1750 NCCL WARN HIP failure 'unknown error'",
                (
                    "torch.distributed.DistBackendError: NCCL error in: "
                    "ProcessGroupNCCL.cpp:1970, unhandled cuda error, NCCL version 2.18.1"
                ),
            ),
            weighed=True,
        ),
    ),
    remedies=(
        automatic(
            "Compare kernel module, library and service.",
            "cat /proc/driver/nvidia/version; nvidia-smi; systemctl status nvidia-fabricmanager",
        ),
        disruptive(
            "Reboot after a driver upgrade, and start the Fabric Manager of the same version.",
            "systemctl enable --now nvidia-fabricmanager",
        ),
        by_hand(
            "Use a torch build for the CUDA version that the driver supports, or upgrade the "
            "driver."
        ),
    ),
    sources=(
        "pytorch/pytorch#35710",
        "NVIDIA: CUDA compatibility",
        "NVIDIA: Fabric Manager user guide",
    ),
)

"""GPU011 gpu-in-use."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

GPU_IN_USE = Cause(
    code="GPU011",
    name="gpu-in-use",
    summary="Another process computes on a GPU that the job is to use, or holds its memory.",
    what_happens="A process of an earlier job that was not ended, another user's process, or a "
    "notebook holds memory and computes. The new job runs out of memory on that device, or is "
    "slow on it, without a visible reason.",
    shows_before="Processes in `nvidia-smi`, or memory in use without any: a process of another "
    "container, or one that died and whose context the driver still holds.",
    shows_during="Out of memory on one rank at a size that fits on the others, or one rank that "
    "is always last.",
    shows_after="`torch.OutOfMemoryError ... GPU 3 has a total capacity of ... of which ... is "
    "free`, with a process in the message that is not yours; `Device acquire failed` (Gaudi), "
    "`Failed to initialize the HCCP process` (Ascend).",
    known_misses="Inside a container only its own processes can be named. A GPU that is shared on "
    "purpose (MPS, a display) is reported too.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="device-taken",
            tier=Tier.NAMED,
            confidence=0.8,
            sentence="another process holds the device",
            patterns=(
                "Device (?:acquire failed|already acquired)",
                "Failed to initialize the HCCP process|EJ0001: ",
                (
                    r"devices?(?:\(s\))? (?:is/are|is|are) busy or unavailable"
                    r"|cudaErrorDevicesUnavailable"
                ),
                "CUDA_ERROR_DEVICE_UNAVAILABLE|exclusive (?:process|thread).{0,60}already in use",
            ),
            examples=(
                ("[rank0]: RuntimeError: synStatus=8 [Device not found] Device acquire failed."),
                (
                    "[rank3]: EJ0001: Failed to initialize the HCCP process. Reason: "
                    "Maybe the last training process is running."
                ),
                "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            ),
            counter_examples=("12/16/2024 09:09:06 - INFO - Device acquired: HPU 0",),
        ),
    ),
    remedies=(
        automatic(
            "List the processes that use the GPU.", "nvidia-smi pmon -c 1; fuser -v /dev/nvidia*"
        ),
        by_hand(
            "End leftover processes of an earlier job by pid; a zombie disappears when its "
            "parent ends."
        ),
    ),
    sources=("pytorch/pytorch#127123", "NVIDIA NVML: nvmlDeviceGetComputeRunningProcesses"),
)

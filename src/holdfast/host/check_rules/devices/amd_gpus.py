"""Judges AMD GPUs: driver, count, health."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.gpu.cuda_driver_mismatch import CUDA_DRIVER_MISMATCH
from holdfast.causes.gpu.gpu_hw_fault import GPU_HW_FAULT
from holdfast.causes.gpu.gpu_link_degraded import GPU_LINK_DEGRADED
from holdfast.causes.gpu.gpu_settings import GPU_SETTINGS
from holdfast.causes.gpu.gpu_throttled import GPU_THROTTLED
from holdfast.causes.gpu.invalid_device_ordinal import INVALID_DEVICE_ORDINAL
from holdfast.core.findings import Fact, Finding, Level, make_finding
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.devices.amd_gpus import AmdGpu, AmdGpusResult, describe_amd_gpu

_MARGIN_C = 5
_REDUCED_POWER = 0.95


def judge(result: AmdGpusResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the driver, the count, then each GPU."""
    without = [gpu.bus for gpu in result.gpus if gpu.driver != "amdgpu"]
    if without:
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            f"AMD GPUs not bound to the driver amdgpu: {', '.join(without)}; ROCm will not find "
            f"them",
            evidence=result.facts(),
            confidence=0.8,
        )
    if result.openable is False and not without:
        yield make_finding(
            CUDA_DRIVER_MISMATCH,
            "AMD GPUs exist but /dev/kfd does not: the container was started without "
            "--device=/dev/kfd",
            evidence=result.facts(),
            confidence=0.9,
        )
    visible = min([len(result.gpus), *(count for _, count in result.visible)])
    if context.workers is not None and context.workers > visible:
        variables = (
            check_fact(name, f"{count} GPUs", "environment") for name, count in result.visible
        )
        yield make_finding(
            INVALID_DEVICE_ORDINAL,
            f"{context.workers} workers on this host, but only {visible} visible GPUs",
            evidence=(*result.facts(), *variables),
        )
    for gpu in result.gpus:
        yield from _judge_gpu(gpu, (describe_amd_gpu(gpu),))


def _judge_gpu(gpu: AmdGpu, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    if gpu.errors:
        yield make_finding(
            GPU_HW_FAULT,
            f"AMD GPU {gpu.bus}: {gpu.errors} uncorrectable errors since its driver was loaded",
            evidence=evidence,
            confidence=0.8,
        )
    temperature, critical = gpu.temperature_c, gpu.critical_c
    if temperature is not None and critical and temperature >= critical - _MARGIN_C:
        yield make_finding(
            GPU_THROTTLED,
            f"AMD GPU {gpu.bus} is at {temperature:g} °C; its limit is {critical:g} °C",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )
    cap, default = gpu.power_cap_w, gpu.power_default_w
    if cap and default and cap < _REDUCED_POWER * default:
        yield make_finding(
            GPU_SETTINGS,
            f"AMD GPU {gpu.bus} has a power cap of {cap:g} W; the default is {default:g} W",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
        )
    width, maximum = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and maximum is not None and width < maximum:
        yield make_finding(
            GPU_LINK_DEGRADED,
            f"AMD GPU {gpu.bus} uses {width} of {maximum} PCIe lanes",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.7,
        )

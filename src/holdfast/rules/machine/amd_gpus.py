"""AMD GPUs: will a job find them, and are they well?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.amd_gpus import AmdGpu, AmdGpus, told
from holdfast.findings import Fact, Finding, Level, finding
from holdfast.rules.causes import by_name

_NEAR_C = 5
_POWER_PART = 0.95


def judge(seen: AmdGpus, place: Place) -> Iterator[Finding]:
    """The driver, the number, then each GPU."""
    without = [gpu.bus for gpu in seen.gpus if gpu.driver != "amdgpu"]
    if without:
        yield finding(by_name("cuda-driver-mismatch"), f"{len(without)} AMD GPUs ({', '.join(without)}) do not belong "
                      "to the driver amdgpu: ROCm will not find them",
                      evidence=seen.facts(), confidence=0.8)  # fmt: skip
    if seen.openable is False and not without:
        yield finding(by_name("cuda-driver-mismatch"), "there are AMD GPUs and no /dev/kfd: a container that was "
                      "started without --device=/dev/kfd", evidence=seen.facts(), confidence=0.9)  # fmt: skip
    fewest = min([len(seen.gpus), *(count for _, count in seen.visible)])
    if place.workers is not None and place.workers > fewest:
        yield finding(
            by_name("invalid-device-ordinal"), f"{place.workers} workers are to run here, and they will see {fewest} "
            "GPUs",
            evidence=(*seen.facts(), *(fact(name, f"{count} GPUs", "environment") for name, count in seen.visible)),
        )  # fmt: skip
    for gpu in seen.gpus:
        yield from _health(gpu, (told(gpu),))


def _health(gpu: AmdGpu, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    if gpu.errors:
        yield finding(by_name("gpu-hw-fault"), f"the AMD GPU {gpu.bus} has had {gpu.errors} errors that could not be "
                      "corrected since its driver was loaded", evidence=evidence, confidence=0.8)  # fmt: skip
    if gpu.temperature_c is not None and gpu.critical_c and gpu.temperature_c >= gpu.critical_c - _NEAR_C:
        yield finding(by_name("gpu-throttled"), f"the AMD GPU {gpu.bus} is at {gpu.temperature_c:g} °C, of "
                      f"{gpu.critical_c:g} °C that it may have",
                      level=Level.WARNING, evidence=evidence, confidence=0.8)  # fmt: skip
    if gpu.power_cap_w and gpu.power_default_w and gpu.power_cap_w < _POWER_PART * gpu.power_default_w:
        yield finding(by_name("gpu-settings"), f"the AMD GPU {gpu.bus} may take {gpu.power_cap_w:g} W where "
                      f"{gpu.power_default_w:g} W is usual", level=Level.WARNING, evidence=evidence,
                      confidence=0.8)  # fmt: skip
    if gpu.width is not None and gpu.width_most is not None and gpu.width < gpu.width_most:
        yield finding(by_name("gpu-link-degraded"), f"the AMD GPU {gpu.bus} has {gpu.width} of {gpu.width_most} PCIe "
            "lanes",
                      level=Level.WARNING, evidence=evidence, confidence=0.7)  # fmt: skip

"""GPU health: temperature, throttling, power cap, ECC errors, links.

Cheap enough to run during a job.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.devices import gpus as gpus_check
from holdfast.host.gpus import DriverReport, DriverTimeout, HostGpu, NoDriver, driver


class GpuHealthResult(CheckResult, frozen=True, kw_only=True):
    """The driver's report. ``stuck``: the driver did not answer in time."""

    answer: DriverReport | None = None
    unanswered: Unknown | None = None
    stuck: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.absent:
            return (check_fact("NVIDIA GPUs", f"none: {self.absent}", "NVML"),)
        if self.answer is None:
            return (check_fact("GPUs", self.unanswered, "NVML"),) if self.unanswered else ()
        facts = [describe_gpu(gpu, self.answer.source) for gpu in self.answer.gpus]
        facts += _topology(self.answer)
        return tuple(facts)


def describe_gpu(gpu: HostGpu, source: str) -> Fact:
    """Return one GPU's health in a line."""
    words = [gpu.name]
    for value, unit in ((gpu.temperature_c, "°C"), (gpu.power_limit_w, "W power cap")):
        words += [f"{value:g} {unit}"] if isinstance(value, int | float) else []
    if isinstance(gpu.throttled, tuple):
        words.append("throttled: " + ", ".join(gpu.throttled) if gpu.throttled else "not throttled")
    if isinstance(gpu.ecc_errors, int):
        words.append(f"{gpu.ecc_errors} uncorrected ECC errors")
    if isinstance(gpu.pcie_width, int) and isinstance(gpu.pcie_gen, int):
        words.append(f"PCIe {gpu.pcie_gen} x{gpu.pcie_width}")
    if isinstance(gpu.nvlinks, tuple):
        words.append(f"{sum(link.up for link in gpu.nvlinks)} of {len(gpu.nvlinks)} NVLinks up")
    return check_fact(f"GPU {gpu.index}", ", ".join(words), source)


def inspect(context: CheckContext) -> GpuHealthResult:
    """Query the driver, if there is one."""
    if not gpus_check.has_driver_traces(context):
        return GpuHealthResult(absent="no NVIDIA GPU on the PCI bus, and no driver")
    answer = driver.query_driver(context.root, context.within_s * driver.SHARE)
    if isinstance(answer, NoDriver):
        return GpuHealthResult(absent=answer.why)
    if isinstance(answer, Unknown):
        return GpuHealthResult(unanswered=answer, stuck=isinstance(answer, DriverTimeout))
    return GpuHealthResult(answer=answer)


def _topology(answer: DriverReport) -> Iterator[Fact]:
    """Yield the matrices of `nvidia-smi topo -m` and `-p2p r` combined, one line per GPU."""
    pairs = answer.pairs if isinstance(answer.pairs, tuple) else ()
    for gpu in answer.gpus if pairs else ():
        peers = []
        for pair in pairs:
            if gpu.index in (pair.first, pair.second):
                other = pair.first + pair.second - gpu.index
                access = "" if pair.p2p == "OK" else f" (no peer access: {pair.p2p})"
                peers.append(f"{other} {pair.link}{access}")
        yield check_fact(f"GPU {gpu.index} to GPU", ", ".join(peers), answer.source)

"""How the GPUs are: heat, lowered clocks, power, memory errors, links. Cheap enough to be asked while a job runs."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts import gpus as driver
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks import gpus as present
from holdfast.facts.gpus import Answer, Gpu, NoDriver, Stuck
from holdfast.findings import Fact, Unknown


class GpuHealth(Seen, frozen=True, kw_only=True):
    """What the driver says of each. ``stuck``: it did not answer in time."""

    answer: Answer | None = None
    unanswered: Unknown | None = None
    stuck: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact("NVIDIA GPUs", f"none: {self.absent}", "NVML"),)
        if self.answer is None:
            return (fact("GPUs", self.unanswered, "NVML"),) if self.unanswered else ()
        told = [told_of(gpu, self.answer.source) for gpu in self.answer.gpus]
        told += _ways(self.answer)
        return tuple(told)


def told_of(gpu: Gpu, source: str) -> Fact:
    """One GPU's health in a line."""
    words = [gpu.name]
    for value, unit in ((gpu.temperature_c, "°C"), (gpu.power_limit_w, "W at most")):
        words += [f"{value:g} {unit}"] if isinstance(value, int | float) else []
    if isinstance(gpu.throttled, tuple):
        words.append("clocks lowered: " + ", ".join(gpu.throttled) if gpu.throttled else "clocks not lowered")
    if isinstance(gpu.ecc_errors, int):
        words.append(f"{gpu.ecc_errors} uncorrected memory errors")
    if isinstance(gpu.pcie_width, int) and isinstance(gpu.pcie_gen, int):
        words.append(f"PCIe {gpu.pcie_gen} x{gpu.pcie_width}")
    if isinstance(gpu.nvlinks, tuple):
        words.append(f"{sum(link.up for link in gpu.nvlinks)} of {len(gpu.nvlinks)} NVLinks up")
    return fact(f"GPU {gpu.index}", ", ".join(words), source)


def look(place: Place) -> GpuHealth:
    """Ask the driver, where there is one."""
    if not present.traces(place):
        return GpuHealth(absent="no NVIDIA GPU on the PCI bus, and no driver")
    answer = driver.ask(place.root, place.within_s * driver.SHARE)
    if isinstance(answer, NoDriver):
        return GpuHealth(absent=answer.why)
    if isinstance(answer, Unknown):
        return GpuHealth(unanswered=answer, stuck=isinstance(answer, Stuck))
    return GpuHealth(answer=answer)


def _ways(answer: Answer) -> Iterator[Fact]:
    """The matrix of `nvidia-smi topo -m` and `-p2p r` in one, a line a GPU."""
    pairs = answer.pairs if isinstance(answer.pairs, tuple) else ()
    for gpu in answer.gpus if pairs else ():
        told = []
        for pair in pairs:
            if gpu.index in (pair.one, pair.other):
                other = pair.one + pair.other - gpu.index
                told.append(f"{other} {pair.way}" + ("" if pair.peer == "OK" else f" (no peer access: {pair.peer})"))
        yield fact(f"GPU {gpu.index} to GPU", ", ".join(told), answer.source)

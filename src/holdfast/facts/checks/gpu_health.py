"""How the GPUs are: heat, lowered clocks, power, memory errors, links. Cheap enough to be asked while a job runs."""

from __future__ import annotations

from holdfast.facts import gpus as driver
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks import gpus as present
from holdfast.facts.gpus import Answer, Gpu, NoDriver
from holdfast.findings import Fact, Unknown


class GpuHealth(Seen, frozen=True, kw_only=True):
    """What the driver says of each."""

    answer: Answer | None = None
    unanswered: Unknown | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact("NVIDIA GPUs", f"none: {self.absent}", "NVML"),)
        if self.answer is None:
            return (fact("GPUs", self.unanswered, "NVML"),) if self.unanswered else ()
        told = [told_of(gpu, self.answer.source) for gpu in self.answer.gpus]
        if isinstance(self.answer.pairs, tuple) and self.answer.pairs:
            ways = {pair.way: sum(other.way == pair.way for other in self.answer.pairs) for pair in self.answer.pairs}
            refused = sum(pair.peer != "OK" for pair in self.answer.pairs)
            text = ", ".join(f"{count} pairs by {way}" for way, count in ways.items())
            told.append(fact("GPUs are joined", f"{text}; {refused} pairs without peer access", self.answer.source))
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
        words.append(f"{sum(gpu.nvlinks)} of {len(gpu.nvlinks)} NVLinks up")
    return fact(f"GPU {gpu.index}", ", ".join(words), source)


def look(place: Place) -> GpuHealth:
    """Ask the driver, where there is one."""
    if not present.traces(place):
        return GpuHealth(absent="no NVIDIA GPU on the PCI bus, and no driver")
    answer = driver.ask(place.root)
    if isinstance(answer, NoDriver):
        return GpuHealth(absent=answer.why)
    return GpuHealth(unanswered=answer) if isinstance(answer, Unknown) else GpuHealth(answer=answer)

"""Can GPUs and adapters reach each other over the PCI bus, without a way round through the processor?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.pci_paths import PciPaths
from holdfast.findings import Finding, Level, finding
from holdfast.rules.causes import by_name


def judge(seen: PciPaths, _place: Place) -> Iterator[Finding]:
    """Translation and redirection matter where two devices want to talk."""
    gpus = {device.bus for device in seen.devices if device.is_gpu}
    if len(seen.devices) > 1 and gpus:
        yield from _translated(seen, gpus)
        yield from _redirected(seen, gpus)
    for device in seen.devices:
        if device.is_gpu or device.width is None or device.width_most is None or device.width >= device.width_most:
            continue
        yield finding(
            by_name("ib-port-degraded"), f"the network adapter {device.bus} has {device.width} of {device.width_most} "
            "PCIe lanes", level=Level.WARNING, evidence=(*seen.facts(),
            fact(f"adapter {device.bus}", f"x{device.width} of x{device.width_most}", "current_link_width")),
            confidence=0.7,
        )  # fmt: skip


def _translated(seen: PciPaths, gpus: set[str]) -> Iterator[Finding]:
    """In a virtual machine the IOMMU seen is the machine's own, and is judged from outside."""
    translated = [each.bus for each in seen.groups if each.bus in gpus and each.treated in ("DMA", "DMA-FQ")]
    if translated and not seen.virtual:
        yield finding(
            by_name("iommu-acs-p2p-hang"), f"the IOMMU translates the addresses of {len(translated)} GPUs: transfers "
            "between them may be slow, stand still, or arrive damaged", level=Level.WARNING, evidence=seen.facts(),
            confidence=0.6,
        )  # fmt: skip


def _redirected(seen: PciPaths, gpus: set[str]) -> Iterator[Finding]:
    """Only bridges above a GPU, and not in a virtual machine, where ACS and ATS belong together."""
    redirecting = set(seen.redirecting) if isinstance(seen.redirecting, tuple) else set()
    above = sorted({bus for device in seen.devices if device.bus in gpus for bus in device.above} & redirecting)
    if above and not seen.virtual:
        yield finding(
            by_name("iommu-acs-p2p-hang"), f"ACS on {len(above)} PCI bridges above GPUs ({', '.join(above[:4])}) sends "
            "traffic between devices through the processor: peer-to-peer transfers are slow or stand still",
            level=Level.WARNING, evidence=seen.facts(), confidence=0.7,
        )  # fmt: skip

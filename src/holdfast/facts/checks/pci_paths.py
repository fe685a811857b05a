"""The ways between GPUs and adapters over the PCI bus: IOMMU, ACS, lanes of network adapters."""

from __future__ import annotations

import msgspec

from holdfast.facts import pci, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.pci import Device
from holdfast.findings import Fact, Unknown


class Grouped(msgspec.Struct, frozen=True):
    """A device and how the IOMMU treats it.

    ``identity`` passes addresses through, ``DMA`` and ``DMA-FQ`` translate them; empty where there is no IOMMU.
    """

    bus: str
    treated: str | Unknown


class PciPaths(Seen, frozen=True, kw_only=True):
    """``devices``: GPUs and RDMA adapters. ``redirecting``: bridges whose ACS sends peers' traffic to the root."""

    devices: tuple[Device, ...] = ()
    groups: tuple[Grouped, ...] = ()
    redirecting: tuple[str, ...] | Unknown = ()
    virtual: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact("PCI", self.absent, pci.DEVICES),)
        treated = sorted({str(each.treated) for each in self.groups if isinstance(each.treated, str) and each.treated})
        redirecting = (
            self.redirecting if isinstance(self.redirecting, Unknown) else ", ".join(self.redirecting) or "none"
        )
        return (
            fact("GPUs and adapters on the PCI bus", len(self.devices), pci.DEVICES),
            fact("IOMMU", ", ".join(treated) or "none", "/sys/kernel/iommu_groups"),
            fact("bridges with ACS redirection", redirecting, f"{pci.DEVICES}/*/config"),
            fact("virtual machine", "yes" if self.virtual else "no", "/proc/cpuinfo"),
        )


def look(place: Place) -> PciPaths:
    """Read /sys."""
    devices = pci.devices(place.root)
    if isinstance(devices, Unknown):
        return PciPaths(absent=f"no PCI bus ({devices.why})")
    chosen = tuple(each for each in devices if each.is_gpu or (each.is_network and each.vendor == pci.MELLANOX))
    if not chosen:
        return PciPaths(absent="no GPU and no RDMA adapter on the bus")
    cpu = proc.text(place.path("/proc/cpuinfo"))
    return PciPaths(
        devices=chosen, groups=tuple(Grouped(each.bus, _treated(place, each)) for each in chosen),
        redirecting=pci.redirecting(place.root), virtual=isinstance(cpu, str) and " hypervisor" in cpu,
    )  # fmt: skip


def _treated(place: Place, device: Device) -> str | Unknown:
    group = place.path(f"{pci.DEVICES}/{device.bus}/iommu_group")
    if not group.exists():
        return ""
    content = proc.text(group / "type")
    return content.strip() if isinstance(content, str) else content

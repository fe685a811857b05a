"""PCI paths between GPUs and adapters: IOMMU, ACS, PCIe lanes of network adapters."""

from __future__ import annotations

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host import pci
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.pci import PciDevice
from holdfast.host.processes import proc


class IommuMapping(msgspec.Struct, frozen=True):
    """A device and the type of its IOMMU domain.

    ``identity`` passes addresses through, ``DMA`` and ``DMA-FQ`` translate them; empty without an
    IOMMU.
    """

    bus: str
    mode: str | Unknown


class PciPathsResult(CheckResult, frozen=True, kw_only=True):
    """``devices``: GPUs and RDMA adapters.

    ``redirecting``: bridges whose ACS redirects peer-to-peer traffic upstream. ``virtual``: this
    host is a virtual machine.
    """

    devices: tuple[PciDevice, ...] = ()
    iommu: tuple[IommuMapping, ...] = ()
    redirecting: tuple[str, ...] | Unknown = ()
    virtual: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.absent:
            return (check_fact("PCI", self.absent, pci.DEVICES),)
        modes = sorted(
            {
                mapping.mode
                for mapping in self.iommu
                if isinstance(mapping.mode, str) and mapping.mode
            }
        )
        redirecting = (
            self.redirecting
            if isinstance(self.redirecting, Unknown)
            else ", ".join(self.redirecting) or "none"
        )
        return (
            check_fact("GPUs and adapters on the PCI bus", len(self.devices), pci.DEVICES),
            check_fact("IOMMU", ", ".join(modes) or "none", "/sys/kernel/iommu_groups"),
            check_fact("PCI bridges with ACS redirection", redirecting, f"{pci.DEVICES}/*/config"),
            check_fact("virtual machine", "yes" if self.virtual else "no", "/proc/cpuinfo"),
        )


def inspect(context: CheckContext) -> PciPathsResult:
    """Read /sys."""
    devices = pci.pci_devices(context.root)
    if isinstance(devices, Unknown):
        return PciPathsResult(absent=f"no PCI bus ({devices.why})")
    relevant = tuple(
        device
        for device in devices
        if device.is_gpu or (device.is_network and device.vendor == pci.MELLANOX)
    )
    if not relevant:
        return PciPathsResult(absent="no GPU and no RDMA adapter on the bus")
    cpu = proc.read_text(context.path("/proc/cpuinfo"))
    return PciPathsResult(
        devices=relevant,
        iommu=tuple(IommuMapping(device.bus, _iommu_mode(context, device)) for device in relevant),
        redirecting=pci.redirecting_bridges(context.root),
        virtual=isinstance(cpu, str) and " hypervisor" in cpu,
    )


def _iommu_mode(context: CheckContext, device: PciDevice) -> str | Unknown:
    group = context.path(f"{pci.DEVICES}/{device.bus}/iommu_group")
    if not group.exists():
        return ""
    content = proc.read_text(group / "type")
    return content.strip() if isinstance(content, str) else content

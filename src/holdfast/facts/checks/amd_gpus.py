"""AMD GPUs as the kernel's driver amdgpu tells them in /sys; no program and no library is asked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.facts import pci, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact, Unknown

_GIB = 1 << 30
#: Each of these leaves fewer GPUs visible: the first is heard by the driver's library, the others by HIP.
VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class AmdGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None where the driver tells no such thing. ``errors`` are uncorrected ones of memory and others."""

    bus: str
    driver: str
    memory_bytes: int | None
    used_bytes: int | None
    temperature_c: float | None
    critical_c: float | None
    power_cap_w: float | None
    power_default_w: float | None
    errors: int | None
    width: int | None
    width_most: int | None


class AmdGpus(Seen, frozen=True, kw_only=True):
    """All of them, how many a process will see by each variable that is set, and whether /dev/kfd is open to us."""

    gpus: tuple[AmdGpu, ...] = ()
    visible: tuple[tuple[str, int], ...] = ()
    openable: bool | Unknown = True

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact("AMD GPUs", f"none: {self.absent}", pci.DEVICES),)
        return (fact("AMD GPUs", len(self.gpus), pci.DEVICES), *map(told, self.gpus))


def told(gpu: AmdGpu) -> Fact:
    """One GPU in a line."""
    words = [gpu.driver or "no driver"]
    if gpu.memory_bytes is not None:
        words.append(f"{gpu.memory_bytes / _GIB:.0f} GiB, {(gpu.used_bytes or 0) / _GIB:.1f} GiB used")
    if gpu.temperature_c is not None:
        words.append(f"{gpu.temperature_c:g} °C")
    if gpu.errors is not None:
        words.append(f"{gpu.errors} uncorrected errors")
    return fact(f"AMD GPU {gpu.bus}", ", ".join(words), f"{pci.DEVICES}/{gpu.bus}")


def look(place: Place) -> AmdGpus:
    """Read /sys."""
    devices = pci.devices(place.root)
    if isinstance(devices, Unknown):
        return AmdGpus(absent=f"no PCI bus ({devices.why})")
    found = tuple(_gpu(place, each) for each in devices if each.is_gpu and each.vendor == pci.AMD and _computes(each))
    if not found:
        return AmdGpus(absent="no AMD GPU on the PCI bus")
    visible = tuple((name, _count(place.environ[name])) for name in VARIABLES if name in place.environ)
    return AmdGpus(gpus=found, visible=visible, openable=_openable(place))


def _computes(device: pci.Device) -> bool:
    """Old graphics of a board belong to the driver radeon, with which nobody computes."""
    return device.driver in ("", "amdgpu", "vfio-pci")


def _count(said: str) -> int:
    return len([entry for entry in said.split(",") if entry.strip() not in ("", "-1")])


def _openable(place: Place) -> bool | Unknown:
    kfd = place.path("/dev/kfd")
    try:
        with kfd.open("rb"):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        return Unknown(f"/dev/kfd: {error.strerror}")


def _gpu(place: Place, device: pci.Device) -> AmdGpu:
    folder = place.path(f"{pci.DEVICES}/{device.bus}")
    sensors = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), folder / "hwmon")
    return AmdGpu(
        bus=device.bus, driver=device.driver, memory_bytes=_whole(folder / "mem_info_vram_total"),
        used_bytes=_whole(folder / "mem_info_vram_used"), temperature_c=_scaled(sensors / "temp2_input", 1e3),
        critical_c=_scaled(sensors / "temp2_crit", 1e3), power_cap_w=_scaled(sensors / "power1_cap", 1e6),
        power_default_w=_scaled(sensors / "power1_cap_default", 1e6), errors=_errors(folder / "ras"),
        width=device.width, width_most=device.width_most,
    )  # fmt: skip


def _whole(path: Path) -> int | None:
    value = proc.number(path)
    return value if isinstance(value, int) else None


def _scaled(path: Path, unit: float) -> float | None:
    value = _whole(path)
    return None if value is None else value / unit


def _errors(folder: Path) -> int | None:
    """Each part's counter is ``ue: 0`` (uncorrected) and ``ce: 3`` (corrected)."""
    found = []
    for entry in sorted(folder.glob("*_err_count")):
        counts = proc.fields(entry)
        if isinstance(counts, dict) and counts.get("ue", "").isdigit():
            found.append(int(counts["ue"]))
    return sum(found) if found else None

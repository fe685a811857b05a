"""AMD GPUs as the kernel driver amdgpu shows them in /sys; no program or library is used."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host import pci
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

_GIB = 1 << 30
#: Variables that restrict the visible GPUs: the first is read by the driver's library (ROCr), the
#: others by HIP.
VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class AmdGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; None where the driver reports no value.

    ``errors`` are uncorrected RAS errors, of memory and others.
    """

    bus: str
    driver: str
    memory_bytes: int | None
    used_bytes: int | None
    temperature_c: float | None
    critical_c: float | None
    power_cap_w: float | None
    power_default_w: float | None
    errors: int | None
    pcie_width: int | None
    pcie_width_max: int | None


class AmdGpusResult(CheckResult, frozen=True, kw_only=True):
    """All GPUs, how many each set variable leaves visible, and whether /dev/kfd can be opened."""

    gpus: tuple[AmdGpu, ...] = ()
    visible: tuple[tuple[str, int], ...] = ()
    openable: bool | Unknown = True

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.absent:
            return (check_fact("AMD GPUs", f"none: {self.absent}", pci.DEVICES),)
        return (
            check_fact("AMD GPUs", len(self.gpus), pci.DEVICES),
            *map(describe_amd_gpu, self.gpus),
        )


def describe_amd_gpu(gpu: AmdGpu) -> Fact:
    """Return one GPU in a line."""
    words = [gpu.driver or "no driver"]
    if gpu.memory_bytes is not None:
        words.append(
            f"{gpu.memory_bytes / _GIB:.0f} GiB, {(gpu.used_bytes or 0) / _GIB:.1f} GiB used"
        )
    if gpu.temperature_c is not None:
        words.append(f"{gpu.temperature_c:g} °C")
    if gpu.errors is not None:
        words.append(f"{gpu.errors} uncorrected errors")
    return check_fact(f"AMD GPU {gpu.bus}", ", ".join(words), f"{pci.DEVICES}/{gpu.bus}")


def inspect(context: CheckContext) -> AmdGpusResult:
    """Read /sys."""
    devices = pci.pci_devices(context.root)
    if isinstance(devices, Unknown):
        return AmdGpusResult(absent=f"no PCI bus ({devices.why})")
    gpus = tuple(
        _read_gpu(context, device)
        for device in devices
        if device.is_gpu and device.vendor == pci.AMD and _is_compute_gpu(device)
    )
    if not gpus:
        return AmdGpusResult(absent="no AMD GPU on the PCI bus")
    visible = tuple(
        (name, _count_entries(context.environ[name]))
        for name in VARIABLES
        if name in context.environ
    )
    return AmdGpusResult(gpus=gpus, visible=visible, openable=_can_open_kfd(context))


def _is_compute_gpu(device: pci.PciDevice) -> bool:
    """Old onboard graphics use the driver radeon, which has no compute support."""
    return device.driver in ("", "amdgpu", "vfio-pci")


def _count_entries(value: str) -> int:
    return len([entry for entry in value.split(",") if entry.strip() not in ("", "-1")])


def _can_open_kfd(context: CheckContext) -> bool | Unknown:
    kfd = context.path("/dev/kfd")
    try:
        with kfd.open("rb"):
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        return Unknown(f"/dev/kfd: {error.strerror}")


def _read_gpu(context: CheckContext, device: pci.PciDevice) -> AmdGpu:
    folder = context.path(f"{pci.DEVICES}/{device.bus}")
    sensors = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), folder / "hwmon")
    return AmdGpu(
        bus=device.bus,
        driver=device.driver,
        memory_bytes=_read_integer(folder / "mem_info_vram_total"),
        used_bytes=_read_integer(folder / "mem_info_vram_used"),
        temperature_c=_read_scaled(sensors / "temp2_input", 1e3),
        critical_c=_read_scaled(sensors / "temp2_crit", 1e3),
        power_cap_w=_read_scaled(sensors / "power1_cap", 1e6),
        power_default_w=_read_scaled(sensors / "power1_cap_default", 1e6),
        errors=_uncorrected_errors(folder / "ras"),
        pcie_width=device.width,
        pcie_width_max=device.width_max,
    )


def _read_integer(path: Path) -> int | None:
    value = proc.read_number(path)
    return value if isinstance(value, int) else None


def _read_scaled(path: Path, unit: float) -> float | None:
    value = _read_integer(path)
    return None if value is None else value / unit


def _uncorrected_errors(folder: Path) -> int | None:
    """Sum the uncorrected errors (``ue: 0``) in the files of all RAS blocks."""
    errors = []
    for entry in sorted(folder.glob("*_err_count")):
        counts = proc.read_fields(entry)
        if isinstance(counts, dict) and counts.get("ue", "").isdigit():
            errors.append(int(counts["ue"]))
    return sum(errors) if errors else None

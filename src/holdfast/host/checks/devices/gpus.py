"""The GPUs that a job will see: count, order, and other processes on them."""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec.structs import replace

from holdfast.core.findings import Fact, Unknown
from holdfast.host import pci
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.gpus import DriverReport, DriverTimeout, GpuProcess, HostGpu, NoDriver, driver
from holdfast.host.gpus.visible_devices import VARIABLE, VisibleDevices, parse_visible_devices
from holdfast.host.processes import proc

DRIVER_GPUS = "/proc/driver/nvidia/gpus"
_GIB = 1 << 30


class GpuUser(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a GPU.

    ``name`` is None if no such process is visible: it runs in another container, or has exited.
    ``state`` is the kernel's letter; Z is a zombie.
    """

    gpu: int
    pid: int
    memory_bytes: int | None
    name: str | None
    state: str | None
    owner: int | None


class GpusResult(CheckResult, frozen=True, kw_only=True):
    """``on_bus``: NVIDIA GPUs on the PCI bus.

    ``of_driver``: bus addresses that the kernel driver lists. ``stuck``: the driver did not
    answer in time; its GPUs are then unknown. ``switches``: number of NVSwitches on the bus;
    ``has_fabric_manager``: the Fabric Manager that they need runs, as far as visible from this
    container.
    """

    on_bus: tuple[pci.PciDevice, ...] = ()
    of_driver: tuple[str, ...] = ()
    stuck: bool = False
    answer: DriverReport | None = None
    unanswered: Unknown | None = None
    visible: VisibleDevices | None = None
    users: tuple[GpuUser, ...] = ()
    switches: int = 0
    has_fabric_manager: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.absent:
            return (check_fact("NVIDIA GPUs", f"none: {self.absent}", pci.DEVICES),)
        buses = ", ".join(device.bus for device in self.on_bus) or "none"
        facts = [
            check_fact("NVIDIA GPUs on the PCI bus", f"{len(self.on_bus)} ({buses})", pci.DEVICES)
        ]
        if self.answer is None:
            return (
                (check_fact("GPUs", self.unanswered, "NVML"), *facts)
                if self.unanswered
                else tuple(facts)
            )
        models = Counter(gpu.name for gpu in self.answer.gpus)
        text = ", ".join(f"{count} x {name}" for name, count in models.items()) or "none"
        facts.insert(
            0, check_fact("GPUs", f"{text}; driver {self.answer.driver}", self.answer.source)
        )
        if self.visible is not None and self.visible.value is not None:
            numbers = ", ".join(map(str, self.visible.gpus)) or "none"
            facts.append(
                check_fact(VARIABLE, f"{self.visible.value} (GPUs {numbers})", "environment")
            )
        facts += [_gpu_fact(gpu, self.answer.source) for gpu in self.answer.gpus]
        facts += [
            check_fact(f"GPU {user.gpu} in use by", _describe_user(user), self.answer.source)
            for user in self.users
        ]
        return tuple(facts)


def inspect(context: CheckContext) -> GpusResult:
    """Read the PCI bus and the kernel driver, and query the driver's library."""
    on_bus = pci.pci_devices(context.root)
    nvidia = (
        ()
        if isinstance(on_bus, Unknown)
        else tuple(device for device in on_bus if device.is_gpu and device.vendor == pci.NVIDIA)
    )
    driver_gpus = _driver_gpus(context)
    answer = (
        driver.query_driver(context.root, context.within_s * driver.SHARE)
        if nvidia or has_driver_traces(context)
        else NoDriver("no NVIDIA GPU on this host")
    )
    if isinstance(answer, NoDriver):
        if not nvidia and not context.environ.get(VARIABLE, "-1").startswith("-"):
            return GpusResult(visible=parse_visible_devices(context.environ, ()))
        if not nvidia:
            return GpusResult(absent="no NVIDIA GPU on the PCI bus, and no driver")
        return GpusResult(on_bus=nvidia, of_driver=driver_gpus, unanswered=answer)
    if isinstance(answer, Unknown):
        return GpusResult(
            on_bus=nvidia,
            of_driver=driver_gpus,
            stuck=isinstance(answer, DriverTimeout),
            unanswered=answer,
        )
    answer = replace(answer, pairs=())  # the check gpu-health reports the topology
    users = tuple(
        _gpu_user(context, gpu, process)
        for gpu in answer.gpus
        if isinstance(gpu.processes, tuple)
        for process in gpu.processes
    )
    switches = 0 if isinstance(on_bus, Unknown) else sum(device.is_nvswitch for device in on_bus)
    return GpusResult(
        on_bus=nvidia,
        of_driver=driver_gpus,
        answer=answer,
        users=users,
        visible=parse_visible_devices(context.environ, answer.gpus),
        switches=switches,
        has_fabric_manager=switches > 0 and _is_running(context, "nv-fabricmanage"),
    )


def has_driver_traces(context: CheckContext) -> bool:
    """Return whether there is any trace of NVIDIA's driver.

    A host without one needs no query process.
    """
    names = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", f"/{driver.RECORDED}")
    return any(context.path(name).exists() for name in names)


def _is_running(context: CheckContext, name: str) -> bool:
    """Return whether a process of this name runs (the kernel keeps 15 characters of it)."""
    return any(
        proc.read_text(entry) == f"{name}\n" for entry in context.path("/proc").glob("[0-9]*/comm")
    )


def _driver_gpus(context: CheckContext) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in context.path(DRIVER_GPUS).iterdir()))
    except OSError:
        return ()


def _gpu_user(context: CheckContext, gpu: HostGpu, process: GpuProcess) -> GpuUser:
    folder = context.path("/proc")
    stat = proc.read_stat(process.pid, folder)
    try:
        owner = (folder / str(process.pid)).stat().st_uid
    except OSError:
        owner = None
    known = None if isinstance(stat, Unknown) else stat
    return GpuUser(
        gpu=gpu.index,
        pid=process.pid,
        memory_bytes=process.memory_bytes,
        name=known.name if known else None,
        state=known.state if known else None,
        owner=owner,
    )


def _gpu_fact(gpu: HostGpu, source: str) -> Fact:
    memory = (
        f"{gpu.memory_bytes / _GIB:.0f} GiB"
        if isinstance(gpu.memory_bytes, int)
        else "memory unknown"
    )
    used = (
        f"{gpu.memory_used_bytes / _GIB:.1f} GiB used"
        if isinstance(gpu.memory_used_bytes, int)
        else ""
    )
    return check_fact(
        f"GPU {gpu.index}",
        ", ".join(filter(None, (gpu.name, gpu.uuid, gpu.bus, memory, used))),
        source,
    )


def _describe_user(user: GpuUser) -> str:
    memory = f", {user.memory_bytes / _GIB:.1f} GiB" if user.memory_bytes is not None else ""
    return f"process {user.pid} ({user.name or 'not visible from here'}){memory}"

"""The GPUs that a job will see: how many, in which order, and who else computes on them."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from holdfast.facts import gpus as driver
from holdfast.facts import pci, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.gpus import Answer, Gpu, Held, NoDriver, Stuck
from holdfast.facts.gpus.visible import VARIABLE, Visible, visible
from holdfast.findings import Fact, Unknown

NAMED = "/proc/driver/nvidia/gpus"
_GIB = 1 << 30


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a GPU.

    ``name`` is None where no such process is here: it is in another container, or gone. ``state`` is the kernel's
    letter; Z is a zombie.
    """

    gpu: int
    pid: int
    memory_bytes: int | None
    name: str | None
    state: str | None
    owner: int | None


class Gpus(Seen, frozen=True, kw_only=True):
    """``on_bus``: NVIDIA's GPUs by the PCI bus; ``of_driver``: those that the kernel's driver has names for.

    ``stuck``: the driver was asked and did not answer in time; its GPUs are then unknown. ``switches`` are NVSwitches
    on the bus, ``managed`` whether the Fabric Manager that they need runs here, as far as this container sees.
    """

    on_bus: tuple[pci.Device, ...] = ()
    of_driver: tuple[str, ...] = ()
    stuck: bool = False
    answer: Answer | None = None
    unanswered: Unknown | None = None
    visible: Visible | None = None
    users: tuple[User, ...] = ()
    switches: int = 0
    managed: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.absent:
            return (fact("NVIDIA GPUs", f"none: {self.absent}", pci.DEVICES),)
        buses = ", ".join(device.bus for device in self.on_bus) or "none"
        found = [fact("NVIDIA GPUs on the PCI bus", f"{len(self.on_bus)} ({buses})", pci.DEVICES)]
        if self.answer is None:
            return (fact("GPUs", self.unanswered, "NVML"), *found) if self.unanswered else tuple(found)
        names = {gpu.name: sum(other.name == gpu.name for other in self.answer.gpus) for gpu in self.answer.gpus}
        told = ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"
        found.insert(0, fact("GPUs", f"{told}; driver {self.answer.driver}", self.answer.source))
        if self.visible is not None and self.visible.said is not None:
            found.append(fact(VARIABLE, f"{self.visible.said} (GPUs {_listed(self.visible.gpus)})", "environment"))
        found += [_told(gpu, self.answer.source) for gpu in self.answer.gpus]
        found += [fact(f"GPU {user.gpu} is used by", _user(user), self.answer.source) for user in self.users]
        return tuple(found)


def look(place: Place) -> Gpus:
    """Ask the bus, the kernel's driver, and the driver's library."""
    on_bus = pci.devices(place.root)
    nvidia = () if isinstance(on_bus, Unknown) else tuple(d for d in on_bus if d.is_gpu and d.vendor == pci.NVIDIA)
    of_driver = _of_driver(place)
    here = nvidia or traces(place)
    answer = driver.ask(place.root, place.within_s * driver.SHARE) if here else NoDriver("no NVIDIA GPU is here")
    if isinstance(answer, NoDriver):
        if not nvidia and not place.environ.get(VARIABLE, "-1").startswith("-"):
            return Gpus(visible=visible(place.environ, ()))
        if not nvidia:
            return Gpus(absent="no NVIDIA GPU on the PCI bus, and no driver")
        return Gpus(on_bus=nvidia, of_driver=of_driver, unanswered=answer)
    if isinstance(answer, Unknown):
        return Gpus(on_bus=nvidia, of_driver=of_driver, stuck=isinstance(answer, Stuck), unanswered=answer)
    answer = replace(answer, pairs=())  # how they are joined is the other check's
    users = tuple(_who(place, gpu, held) for gpu in answer.gpus if isinstance(gpu.held, tuple) for held in gpu.held)
    switches = () if isinstance(on_bus, Unknown) else [each for each in on_bus if each.is_nvswitch]
    return Gpus(
        on_bus=nvidia, of_driver=of_driver, answer=answer, users=users, visible=visible(place.environ, answer.gpus),
        switches=len(switches), managed=bool(switches) and _runs(place, "nv-fabricmanage"),
    )  # fmt: skip


def traces(place: Place) -> bool:
    """Whether there is any trace of NVIDIA's driver; a host without any is not asked, which saves a process."""
    names = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", f"/{driver.RECORDED}")
    return any(place.path(name).exists() for name in names)


def _runs(place: Place, name: str) -> bool:
    """Whether a process of this name runs (the kernel keeps 15 letters of it)."""
    return any(proc.text(entry) == f"{name}\n" for entry in place.path("/proc").glob("[0-9]*/comm"))


def _of_driver(place: Place) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in place.path(NAMED).iterdir()))
    except OSError:
        return ()


def _who(place: Place, gpu: Gpu, held: Held) -> User:
    folder = place.path("/proc")
    stat = proc.stat(held.pid, folder)
    try:
        owner = (folder / str(held.pid)).stat().st_uid
    except OSError:
        owner = None
    known = stat if isinstance(stat, proc.Stat) else None
    return User(
        gpu=gpu.index, pid=held.pid, memory_bytes=held.memory_bytes, name=known.name if known else None,
        state=known.state if known else None, owner=owner,
    )  # fmt: skip


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _told(gpu: Gpu, source: str) -> Fact:
    memory = f"{gpu.memory_bytes / _GIB:.0f} GiB" if isinstance(gpu.memory_bytes, int) else "memory unknown"
    used = f"{gpu.memory_used_bytes / _GIB:.1f} GiB used" if isinstance(gpu.memory_used_bytes, int) else ""
    return fact(f"GPU {gpu.index}", ", ".join(filter(None, (gpu.name, gpu.uuid, gpu.bus, memory, used))), source)


def _user(user: User) -> str:
    memory = f", {user.memory_bytes / _GIB:.1f} GiB" if user.memory_bytes is not None else ""
    return f"process {user.pid} ({user.name or 'not to be seen from here'}){memory}"

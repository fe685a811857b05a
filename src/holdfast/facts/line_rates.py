"""What the hardware between ranks could do at most: the rate of a network interface, of NVLink or PCIe, of memory.

Read from /sys, as the kernel says it; of NVLink the driver is asked; memory is measured, for a fraction of a second.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.facts import gpus as driver
from holdfast.facts import proc
from holdfast.facts.gpus import Answer, nvlink
from holdfast.facts.gpus.visible import visible
from holdfast.facts.proc import PROC
from holdfast.findings import Unknown
from holdfast.measured import Host

SYS = Path("/sys")
_MBIT, _GBIT = 1e6 / 8, 1e9 / 8
#: Bytes a second of one PCIe lane after its line code (8b/10b up to 5 GT/s, 128b/130b from 8, FLITs from 64), by GT/s.
_PCIE_LANE = {2.5: 0.25e9, 5.0: 0.5e9, 8.0: 0.985e9, 16.0: 1.969e9, 32.0: 3.938e9, 64.0: 7.563e9}
_SPEED = re.compile(r"([\d.]+) GT/s")
_MEMORY_BYTES, _MEMORY_TURNS = 32 << 20, 5
#: What NVIDIA's driver, AMD's, and Windows' for Linux put there.
_DRIVERS = ("dev/nvidiactl", "dev/kfd", "dev/dxg")
_NVIDIA, _AMD = "0x10de", "0x1002"


class Carried(msgspec.Struct, frozen=True):
    """Ranks that talk from GPU to GPU: how many are on this host, and the variables that choose their GPUs."""

    ranks: int
    environ: Mapping[str, str]


def this_host(
    endpoint: tuple[str, int] | None, *, alone: bool, interface: str = "", carried: Carried | None = None,
    ask: Callable[[], Answer | Unknown] = driver.ask, sys_root: Path = SYS, proc_root: Path = PROC,
) -> Host:  # fmt: skip
    """This host and the link that its ranks talk over: memory or GPUs' links where they are ``alone``, else a network.

    ``interface`` is the one that the user has named (``GLOO_SOCKET_IFNAME``); else that of the route to ``endpoint``.
    ``carried``: None where data lie in the host's memory (gloo); else the driver is asked (``ask``).
    """
    name = interface.partition(",")[0] or (interface_to(endpoint) if endpoint and not alone else "")
    if not alone:
        rate, line = interface_rate(name, sys_root) if name else (Unknown("its interface is not known"), "")
    elif carried is None:
        rate, line = memory_rate(), "a copy in memory, measured, as the ranks share one host"
    else:
        rate, line = gpu_rate(carried, ask(), sys_root)
    return Host(
        name=socket.gethostname(), processor=_processor(proc_root), cores=_cores(proc_root), devices=gpus(sys_root),
        interface=name, line_rate=None if isinstance(rate, Unknown) else rate,
        line=rate.why if isinstance(rate, Unknown) else line,
    )  # fmt: skip


def gpu_rate(carried: Carried, answer: Answer | Unknown, sys_root: Path = SYS) -> tuple[float | Unknown, str]:
    """Bytes a second between the GPUs of a host's ranks: over NVLink where it joins them, else over PCIe."""
    rate: float | Unknown
    if isinstance(answer, Unknown):
        rate, line = answer, ""
    else:
        rate, line = nvlink.rate(answer, visible(carried.environ, answer.gpus).gpus[: carried.ranks])
    if not isinstance(rate, Unknown):
        return rate, line
    why = rate.why
    rate, line = pcie_rate(sys_root)
    return rate, f"{line}; {why}" if line else ""


def interface_rate(name: str, sys_root: Path = SYS) -> tuple[float | Unknown, str]:
    """Bytes a second of a network interface, by its InfiniBand port where it has one; and where that was read."""
    for port in sorted((sys_root / "class/net" / name / "device/infiniband").glob("*/ports/*/rate")):
        text = proc.text(port)
        if isinstance(text, str) and (match := re.match(r"([\d.]+) Gb/sec", text)):
            return float(match[1]) * _GBIT, f"{match[0]}, says {port}"
    file = sys_root / "class/net" / name / "speed"
    speed, origin = (_asked(name), "ethtool") if sys_root == SYS else (proc.number(file), str(file))
    if isinstance(speed, Unknown) or speed <= 0:
        return Unknown(f"the kernel does not know how fast {name} is ({origin})"), ""
    return speed * _MBIT, f"{speed:,} Mbit/s, says {origin}"


def _asked(name: str) -> int:
    """Mbit/s as the driver says, as ``ethtool`` asks it; 0 where it does not know.

    In a network name space of its own a process may see another one's /sys.
    """
    import psutil  # noqa: PLC0415 - 20 ms that most commands need not pay

    found = psutil.net_if_stats().get(name)
    return int(found.speed) if found is not None else 0


def interface_to(endpoint: tuple[str, int]) -> str:
    """The interface of the route to a host, by the address that the kernel would send from; empty where none is known.

    Nothing is sent: connecting a datagram socket only asks for the route.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(*endpoint, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as asked:
            asked.connect(address)
            own = asked.getsockname()[0]
    except OSError:
        return ""
    return _interface_of(own)


def _interface_of(address: str) -> str:
    import psutil  # noqa: PLC0415 - as above

    for name, own in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in own):
            return str(name)
    return ""


def pcie_rate(sys_root: Path = SYS) -> tuple[float | Unknown, str]:
    """Bytes a second of the slowest PCIe link of a GPU here."""
    found: list[tuple[float, str]] = []
    for device in _gpu_folders(sys_root):
        speed, width = proc.text(device / "max_link_speed"), proc.number(device / "max_link_width")
        match = _SPEED.match(speed) if isinstance(speed, str) else None
        if match and isinstance(width, int) and float(match[1]) in _PCIE_LANE:
            rate = _PCIE_LANE[float(match[1])] * width
            found.append((rate, f"PCIe of {match[1]} GT/s, {width} lanes, says {device}"))
    return min(found) if found else (Unknown("no GPU here says how fast its PCIe link is"), "")


def gpus(sys_root: Path = SYS) -> tuple[str, ...]:
    """Vendor and device number of each GPU that the kernel lists."""
    return tuple(f"{_line(folder / 'vendor')}:{_line(folder / 'device')}" for folder in _gpu_folders(sys_root))


def driven(root: Path = Path("/")) -> bool:
    """Whether a GPU is here and its driver is loaded, so that torch will find it if it was built for it."""
    return bool(gpus(root / "sys")) and any((root / name).exists() for name in _DRIVERS)


def _gpu_folders(sys_root: Path) -> list[Path]:
    folder = sys_root / "bus/pci/devices"
    try:
        devices = sorted(folder.iterdir())
    except OSError:
        return []
    return [
        device for device in devices
        if _line(device / "class").startswith(("0x0300", "0x0302", "0x1200"))
        and _line(device / "vendor") in (_NVIDIA, _AMD)
    ]  # fmt: skip


def memory_rate(nbytes: int = _MEMORY_BYTES) -> float:
    """Bytes a second of a copy in memory by one core: the best of a few turns."""
    import numpy as np  # noqa: PLC0415 - as psutil

    source, target = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    source[:] = 1
    best = float("inf")
    for _ in range(_MEMORY_TURNS):
        began = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - began)
    return nbytes / best


def _processor(proc_root: Path) -> str:
    text = proc.text(proc_root / "cpuinfo")
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE) if isinstance(text, str) else None
    return match[1].strip()[:200] if match else ""


def _cores(proc_root: Path) -> int:
    text = proc.text(proc_root / "cpuinfo")
    return len(re.findall(r"^processor\s*:", text, re.MULTILINE)) if isinstance(text, str) else 0


def _line(path: Path) -> str:
    text = proc.text(path)
    return "" if isinstance(text, Unknown) else text.partition("\n")[0].strip()

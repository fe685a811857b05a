"""Line rates between ranks: of a network interface, of NVLink or PCIe, of memory.

Rates are read from /sys, those of NVLink queried from the driver; memory is measured for a fraction
of a second.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.measurements import BenchHost
from holdfast.host.gpus import DriverReport, driver
from holdfast.host.gpus.nvlink import nvlink_rate
from holdfast.host.gpus.visible_devices import parse_visible_devices
from holdfast.host.processes import proc
from holdfast.host.processes.proc import PROC

SYS = Path("/sys")
_MBIT, _GBIT = 1e6 / 8, 1e9 / 8
#: Bytes/s of one PCIe lane after line coding (8b/10b up to 5 GT/s, 128b/130b from 8, FLITs from
#: 64), by GT/s.
_PCIE_LANE = {2.5: 0.25e9, 5.0: 0.5e9, 8.0: 0.985e9, 16.0: 1.969e9, 32.0: 3.938e9, 64.0: 7.563e9}
_SPEED = re.compile(r"([\d.]+) GT/s")
_MEMORY_BYTES, _MEMORY_RUNS = 32 << 20, 5
#: Device files of the drivers of NVIDIA, AMD, and WSL.
_DRIVER_FILES = ("dev/nvidiactl", "dev/kfd", "dev/dxg")
_NVIDIA, _AMD = "0x10de", "0x1002"


class GpuRanks(msgspec.Struct, frozen=True):
    """Ranks that communicate GPU to GPU: their number here, and the variables for their GPUs."""

    ranks: int
    environ: Mapping[str, str]


def host_line_rates(
    endpoint: tuple[str, int] | None,
    *,
    alone: bool,
    interface: str = "",
    carried: GpuRanks | None = None,
    ask: Callable[[], DriverReport | Unknown] = driver.query_driver,
    sys_root: Path = SYS,
    proc_root: Path = PROC,
) -> BenchHost:
    """Describe this host and the link of its ranks: memory or GPU links if ``alone``.

    ``interface``: as set by the user (``GLOO_SOCKET_IFNAME``); else that of the route to
    ``endpoint``. ``carried``: None for data in host memory (gloo); else the driver is queried with
    ``ask``.
    """
    name = interface.partition(",")[0] or (interface_to(endpoint) if endpoint and not alone else "")
    if not alone:
        rate, line = (
            interface_rate(name, sys_root) if name else (Unknown("network interface not known"), "")
        )
    elif carried is None:
        rate, line = memory_rate(), "measured memory copy, because the ranks share one host"
    else:
        rate, line = gpu_rate(carried, ask(), sys_root)
    return BenchHost(
        name=socket.gethostname(),
        processor=_processor(proc_root),
        cores=_cores(proc_root),
        devices=kernel_gpu_ids(sys_root),
        interface=name,
        line_rate=None if isinstance(rate, Unknown) else rate,
        line=rate.why if isinstance(rate, Unknown) else line,
    )


def gpu_rate(
    carried: GpuRanks, answer: DriverReport | Unknown, sys_root: Path = SYS
) -> tuple[float | Unknown, str]:
    """Return the bytes/s between GPUs of a host: over NVLink if it connects them, else PCIe."""
    rate: float | Unknown
    if isinstance(answer, Unknown):
        rate, line = answer, ""
    else:
        rate, line = nvlink_rate(
            answer, parse_visible_devices(carried.environ, answer.gpus).gpus[: carried.ranks]
        )
    if not isinstance(rate, Unknown):
        return rate, line
    why = rate.why
    rate, line = pcie_rate(sys_root)
    return rate, f"{line}; {why}" if line else ""


def interface_rate(name: str, sys_root: Path = SYS) -> tuple[float | Unknown, str]:
    """Return the bytes/s of a network interface, by its InfiniBand port if it has one.

    And the origin.
    """
    for port in sorted(
        (sys_root / "class/net" / name / "device/infiniband").glob("*/ports/*/rate")
    ):
        text = proc.read_text(port)
        if isinstance(text, str) and (match := re.match(r"([\d.]+) Gb/sec", text)):
            return float(match[1]) * _GBIT, f"{match[0]}, from {port}"
    file = sys_root / "class/net" / name / "speed"
    speed, origin = (
        (_link_speed_mbit(name), "ethtool")
        if sys_root == SYS
        else (proc.read_number(file), str(file))
    )
    if isinstance(speed, Unknown) or speed <= 0:
        return Unknown(f"the kernel does not report the speed of {name} ({origin})"), ""
    return speed * _MBIT, f"{speed:,} Mbit/s, from {origin}"


def _link_speed_mbit(name: str) -> int:
    """Return the Mbit/s that the driver reports to ``ethtool``; 0 if not known.

    A process in a network namespace may see the /sys of another one.
    """
    import psutil  # noqa: PLC0415 - takes 20 ms, which most commands do not need

    stats = psutil.net_if_stats().get(name)
    return int(stats.speed) if stats is not None else 0


def interface_to(endpoint: tuple[str, int]) -> str:
    """Return the interface of the route to a host, by the kernel's source address.

    Empty if not known. Nothing is sent: connecting a datagram socket only looks up the route.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(*endpoint, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as udp:
            udp.connect(address)
            own = udp.getsockname()[0]
    except OSError:
        return ""
    return _interface_of(own)


def _interface_of(address: str) -> str:
    import psutil  # noqa: PLC0415 - takes 20 ms, which most commands do not need

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return ""


def pcie_rate(sys_root: Path = SYS) -> tuple[float | Unknown, str]:
    """Return the bytes/s of the slowest PCIe link of a GPU of this host, and the origin."""
    rates: list[tuple[float, str]] = []
    for device in _gpu_folders(sys_root):
        speed, width = (
            proc.read_text(device / "max_link_speed"),
            proc.read_number(device / "max_link_width"),
        )
        match = _SPEED.match(speed) if isinstance(speed, str) else None
        if match and isinstance(width, int) and float(match[1]) in _PCIE_LANE:
            rate = _PCIE_LANE[float(match[1])] * width
            rates.append((rate, f"PCIe, {match[1]} GT/s, {width} lanes, from {device}"))
    return min(rates) if rates else (Unknown("no GPU reports the speed of its PCIe link"), "")


def kernel_gpu_ids(sys_root: Path = SYS) -> tuple[str, ...]:
    """Return vendor and device number of each GPU that the kernel lists."""
    return tuple(
        f"{_first_line(folder / 'vendor')}:{_first_line(folder / 'device')}"
        for folder in _gpu_folders(sys_root)
    )


def has_gpu_driver(root: Path = Path("/")) -> bool:
    """Return whether this host has a GPU with a loaded driver."""
    return bool(kernel_gpu_ids(root / "sys")) and any(
        (root / name).exists() for name in _DRIVER_FILES
    )


def _gpu_folders(sys_root: Path) -> list[Path]:
    folder = sys_root / "bus/pci/devices"
    try:
        devices = sorted(folder.iterdir())
    except OSError:
        return []
    return [
        device
        for device in devices
        if _first_line(device / "class").startswith(("0x0300", "0x0302", "0x1200"))
        and _first_line(device / "vendor") in (_NVIDIA, _AMD)
    ]


def memory_rate(nbytes: int = _MEMORY_BYTES) -> float:
    """Return the bytes/s of a memory copy by one core: the best of several runs."""
    import numpy as np  # noqa: PLC0415 - slow to import, like psutil

    source, target = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    source[:] = 1
    best = float("inf")
    for _ in range(_MEMORY_RUNS):
        started = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - started)
    return nbytes / best


def _processor(proc_root: Path) -> str:
    text = proc.read_text(proc_root / "cpuinfo")
    match = (
        re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
        if isinstance(text, str)
        else None
    )
    return match[1].strip()[:200] if match else ""


def _cores(proc_root: Path) -> int:
    text = proc.read_text(proc_root / "cpuinfo")
    return len(re.findall(r"^processor\s*:", text, re.MULTILINE)) if isinstance(text, str) else 0


def _first_line(path: Path) -> str:
    text = proc.read_text(path)
    return "" if isinstance(text, Unknown) else text.partition("\n")[0].strip()

"""The devices on the PCI bus as /sys tells them: GPUs, network adapters, bridges. Needs no driver of theirs, nor root.

Root alone may read a device's whole configuration, in which bridges say whether ACS turns traffic between peers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.facts import proc
from holdfast.findings import Unknown

DEVICES = "/sys/bus/pci/devices"
NVIDIA, AMD, MELLANOX = 0x10DE, 0x1002, 0x15B3
_DISPLAY, _ACCELERATOR, _BRIDGE, _NETWORK, _SWITCH = 0x03, 0x12, 0x0604, 0x02, 0x0680
#: Extended capabilities begin behind the first 256 bytes; ACS is number 0x000D, its control word 6 bytes into it.
_EXTENDED, _ACS, _ACS_CONTROL = 0x100, 0x000D, 6
#: Bits of the control word that send traffic between peers up to the root: request and completion redirect.
_REDIRECTS = 0x04 | 0x08


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    ``driver`` is the module that has it, empty where none has; ``speed`` is in GT/s; ``above`` are the bus numbers of
    the bridges between it and the root, outermost first.
    """

    bus: str
    vendor: int
    device: int
    kind: int
    driver: str
    speed: float | None
    speed_most: float | None
    width: int | None
    width_most: int | None
    node: int | None
    above: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """A GPU that computes: NVIDIA's 3D and display controllers, AMD's too and its accelerators."""
        return self.kind >> 8 in (_DISPLAY, _ACCELERATOR) and self.vendor in (NVIDIA, AMD)

    @property
    def is_nvswitch(self) -> bool:
        """One of the switches that join the GPUs of a host."""
        return self.kind == _SWITCH and self.vendor == NVIDIA

    @property
    def is_network(self) -> bool:
        """A network adapter, InfiniBand's too."""
        return self.kind >> 8 == _NETWORK


def devices(root: str = "/") -> tuple[Device, ...] | Unknown:
    """All of them, in the order of the bus."""
    folder = Path(root, DEVICES.lstrip("/"))
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        return Unknown(f"{DEVICES}: {error.strerror}")
    return tuple(device for entry in entries if (device := _device(entry)) is not None)


def _device(entry: Path) -> Device | None:
    vendor, device, kind = (_hex(entry / name) for name in ("vendor", "device", "class"))
    if vendor is None or device is None or kind is None:
        return None
    driver = entry / "driver"
    node = proc.number(entry / "numa_node")
    return Device(
        bus=entry.name, vendor=vendor, device=device, kind=kind >> 8,
        driver=driver.resolve().name if driver.is_symlink() else "",
        speed=_leading(entry / "current_link_speed"), speed_most=_leading(entry / "max_link_speed"),
        width=_whole(entry / "current_link_width"), width_most=_whole(entry / "max_link_width"),
        node=node if isinstance(node, int) and node >= 0 else None, above=_above(entry),
    )  # fmt: skip


def _above(entry: Path) -> tuple[str, ...]:
    """The folders around the device's own are the bridges that it hangs from."""
    try:
        parts = entry.resolve(strict=True).parts
    except OSError:
        return ()
    return tuple(part for part in parts[:-1] if part.count(":") == 2 and "." in part)


def _hex(path: Path) -> int | None:
    content = proc.text(path)
    try:
        return int(content, 16) if isinstance(content, str) else None
    except ValueError:
        return None


def _leading(path: Path) -> float | None:
    """``16.0 GT/s PCIe`` is 16.0; a device without a link says Unknown."""
    content = proc.text(path)
    try:
        return float(content.split()[0]) if isinstance(content, str) else None
    except (IndexError, ValueError):
        return None


def _whole(path: Path) -> int | None:
    value = _leading(path)
    return int(value) if value else None  # a link that is down says 0 or 255


def redirecting(root: str = "/") -> tuple[str, ...] | Unknown:
    """Bridges whose ACS sends traffic between devices below them up to the root complex.

    Unknown where their configuration is closed to us (it is open to root alone).
    """
    found, closed = [], 0
    for entry in _bridges(root):
        control = _acs_control(entry / "config")
        closed += isinstance(control, Unknown)
        if isinstance(control, int) and control & _REDIRECTS:
            found.append(entry.name)
    if closed and not found:
        return Unknown("only root may read how PCI bridges are configured (ACS)")
    return tuple(found)


def _bridges(root: str) -> Iterator[Path]:
    try:
        entries = sorted(Path(root, DEVICES.lstrip("/")).iterdir())
    except OSError:
        return
    for entry in entries:
        kind = _hex(entry / "class")
        if kind is not None and kind >> 8 == _BRIDGE:
            yield entry


def _acs_control(config: Path) -> int | Unknown | None:
    """The control word of ACS; None where the bridge has none, Unknown where only 64 bytes can be read."""
    try:
        content = config.read_bytes()
    except OSError as error:
        return Unknown(f"{config}: {error.strerror}")
    if len(content) <= _EXTENDED:
        return Unknown("closed") if len(content) <= 64 else None  # a bridge of plain PCI has no more than 256
    at, steps = _EXTENDED, 0
    while at and at + 8 <= len(content) and steps < 64:
        (head,) = struct.unpack_from("<I", content, at)
        if head & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", content, at + _ACS_CONTROL)[0])
        at, steps = head >> 20, steps + 1
    return None

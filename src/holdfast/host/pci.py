"""Devices on the PCI bus, read from /sys: GPUs, network adapters, bridges.

Needs neither their drivers nor root. Only root may read a device's whole configuration space,
which has the ACS settings of bridges.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core.findings import Unknown
from holdfast.host.processes import proc

DEVICES = "/sys/bus/pci/devices"
NVIDIA, AMD, MELLANOX = 0x10DE, 0x1002, 0x15B3
_DISPLAY, _ACCELERATOR, _BRIDGE, _NETWORK, _SWITCH = 0x03, 0x12, 0x0604, 0x02, 0x0680
#: Extended capabilities begin after the first 256 bytes; ACS is number 0x000D, its control word at
#: offset 6.
_EXTENDED, _ACS, _ACS_CONTROL = 0x100, 0x000D, 6
#: Bits of the control word that redirect peer-to-peer traffic upstream: request and completion
#: redirect.
_REDIRECTS = 0x04 | 0x08


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    ``driver`` is the kernel module bound to it, empty for none; ``width`` and ``width_max`` are
    PCIe lanes; ``bridges`` are the addresses of the bridges above it, outermost first.
    """

    bus: str
    vendor: int
    device: int
    kind: int
    driver: str
    width: int | None
    width_max: int | None
    node: int | None
    bridges: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a 3D or display controller or an accelerator of NVIDIA or AMD."""
        return self.kind >> 8 in (_DISPLAY, _ACCELERATOR) and self.vendor in (NVIDIA, AMD)

    @property
    def is_nvswitch(self) -> bool:
        """Whether it is an NVSwitch, which connects the GPUs of a host."""
        return self.kind == _SWITCH and self.vendor == NVIDIA

    @property
    def is_network(self) -> bool:
        """Whether it is a network adapter, InfiniBand included."""
        return self.kind >> 8 == _NETWORK


def pci_devices(root: str = "/") -> tuple[PciDevice, ...] | Unknown:
    """Return all devices in bus order."""
    folder = Path(root, DEVICES.lstrip("/"))
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        return Unknown(f"{DEVICES}: {error.strerror}")
    return tuple(device for entry in entries if (device := _read_device(entry)) is not None)


def _read_device(entry: Path) -> PciDevice | None:
    vendor, device, kind = (_read_hex(entry / name) for name in ("vendor", "device", "class"))
    if vendor is None or device is None or kind is None:
        return None
    driver = entry / "driver"
    node = proc.read_number(entry / "numa_node")
    return PciDevice(
        bus=entry.name,
        vendor=vendor,
        device=device,
        kind=kind >> 8,
        driver=driver.resolve().name if driver.is_symlink() else "",
        width=_link_width(entry / "current_link_width"),
        width_max=_link_width(entry / "max_link_width"),
        node=node if isinstance(node, int) and node >= 0 else None,
        bridges=_bridges_above(entry),
    )


def _bridges_above(entry: Path) -> tuple[str, ...]:
    """Return the bridges above a device: the parent folders of its own folder."""
    try:
        parts = entry.resolve(strict=True).parts
    except OSError:
        return ()
    return tuple(part for part in parts[:-1] if part.count(":") == 2 and "." in part)


def _read_hex(path: Path) -> int | None:
    content = proc.read_text(path)
    try:
        return int(content, 16) if isinstance(content, str) else None
    except ValueError:
        return None


def _link_width(path: Path) -> int | None:
    """Return the lanes of a link; None without a link, or if it is down (0)."""
    width = proc.read_number(path)
    return width if isinstance(width, int) and width else None


def redirecting_bridges(root: str = "/") -> tuple[str, ...] | Unknown:
    """Return bridges whose ACS redirects traffic between devices below them to the root complex.

    Unknown if their configuration cannot be read (it needs root).
    """
    redirecting, unreadable = [], 0
    for entry in _all_bridges(root):
        control = _acs_control(entry / "config")
        unreadable += isinstance(control, Unknown)
        if isinstance(control, int) and control & _REDIRECTS:
            redirecting.append(entry.name)
    if unreadable and not redirecting:
        return Unknown("only root may read the configuration of PCI bridges (ACS)")
    return tuple(redirecting)


def _all_bridges(root: str) -> Iterator[Path]:
    try:
        entries = sorted(Path(root, DEVICES.lstrip("/")).iterdir())
    except OSError:
        return
    for entry in entries:
        kind = _read_hex(entry / "class")
        if kind is not None and kind >> 8 == _BRIDGE:
            yield entry


def _acs_control(config: Path) -> int | Unknown | None:
    """Return the ACS control word.

    None if the bridge has none, Unknown if only 64 bytes are readable.
    """
    try:
        content = config.read_bytes()
    except OSError as error:
        return Unknown(f"{config}: {error.strerror}")
    if len(content) <= _EXTENDED:
        # A conventional PCI bridge has 256 bytes at most.
        return Unknown("not readable") if len(content) <= 64 else None
    offset, steps = _EXTENDED, 0
    while offset and offset + 8 <= len(content) and steps < 64:
        (header,) = struct.unpack_from("<I", content, offset)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", content, offset + _ACS_CONTROL)[0])
        offset, steps = header >> 20, steps + 1
    return None

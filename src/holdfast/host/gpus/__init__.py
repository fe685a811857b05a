"""NVIDIA GPUs of a host, as the driver describes them."""

from __future__ import annotations

import msgspec

from holdfast.core.findings import Unknown

#: Remote end of an NVLink that connects to an NVSwitch.
SWITCH = "switch"


class GpuProcess(msgspec.Struct, frozen=True):
    """A compute process on a GPU, and its GPU memory (None if the driver does not report it)."""

    pid: int
    memory_bytes: int | None = None


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink of a GPU: its state, bandwidth in bytes/s per direction, and remote end.

    ``rate`` is None if not reported. ``remote``: the bus address of a GPU, SWITCH, or empty if not
    reported.
    """

    up: bool
    rate: float | None = None
    remote: str = ""


class HostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU. None: not supported by this GPU or driver.

    ``index`` is NVML's index (PCI bus order). ``bus`` has Linux's format (``0000:65:00.0``).
    ``margin_c``: degrees below the throttling temperature. ``throttled``: active throttle reasons,
    in nvidia-smi's words. ``ecc_errors`` are uncorrected since the driver was loaded,
    ``ecc_lifetime_errors`` over the GPU's lifetime. ``performance`` is the performance state, 0
    (full speed) to 15 (idle).
    """

    index: int
    name: str
    uuid: str
    bus: str
    memory_bytes: int | Unknown
    memory_used_bytes: int | Unknown
    temperature_c: int | Unknown | None = None
    slowdown_c: int | Unknown | None = None
    margin_c: int | Unknown | None = None
    power_limit_w: float | Unknown | None = None
    power_default_w: float | Unknown | None = None
    throttled: tuple[str, ...] | Unknown | None = None
    performance: int | Unknown | None = None
    persistence: bool | Unknown | None = None
    ecc: bool | Unknown | None = None
    ecc_errors: int | Unknown | None = None
    ecc_lifetime_errors: int | Unknown | None = None
    rows_pending: bool | Unknown | None = None
    rows_failed: bool | Unknown | None = None
    pages_pending: bool | Unknown | None = None
    recovery: str | Unknown | None = None
    pcie_gen: int | Unknown | None = None
    pcie_gen_max: int | Unknown | None = None
    pcie_width: int | Unknown | None = None
    pcie_width_max: int | Unknown | None = None
    nvlinks: tuple[NvLink, ...] | Unknown | None = None
    nvlink_errors: int | Unknown | None = None
    fabric: str | Unknown | None = None
    compute_mode: str | Unknown | None = None
    mig: bool | Unknown | None = None
    processes: tuple[GpuProcess, ...] | Unknown = ()


class GpuPair(msgspec.Struct, frozen=True):
    """Two GPUs and their connection.

    ``link``: ``NVLink``, or ``PIX`` … ``SYS`` as in `nvidia-smi topo -m`. ``p2p``: whether each can
    access the other's memory (``OK``, or nvidia-smi's letters for why not).
    """

    first: int
    second: int
    link: str
    p2p: str


class DriverReport(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's report: its version, the newest CUDA that it supports, all GPUs.

    ``source`` is NVML or nvidia-smi.
    """

    source: str
    driver: str
    cuda: str
    gpus: tuple[HostGpu, ...]
    pairs: tuple[GpuPair, ...] | Unknown = ()


class DriverTimeout(Unknown, frozen=True):
    """The driver did not answer in time."""


class NoDriver(Unknown, frozen=True):
    """This host has no NVIDIA driver, neither its library nor nvidia-smi."""

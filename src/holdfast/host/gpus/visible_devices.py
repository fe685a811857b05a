"""Parses CUDA_VISIBLE_DEVICES as CUDA and torch do: which GPUs a process sees, and in which order.

Numbers refer to CUDA's order (CUDA_DEVICE_ORDER). The first invalid entry ends the list, a
duplicate entry empties it (CUDA C++ Programming Guide, environment variables;
torch/cuda/__init__.py: _parse_visible_devices).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.host.gpus import HostGpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_LEADING = re.compile(r"[+-]?\d+")


class VisibleDevices(msgspec.Struct, frozen=True, kw_only=True):
    """``gpus``: NVML indices of the visible GPUs, in the order of cuda:0, cuda:1, …

    ``value`` is the variable as set, None if unset. ``invalid``: the first entry that matches no
    GPU; ``duplicate``: a repeated entry. ``by_bus``: numbers refer to PCI bus order, as in
    nvidia-smi.
    """

    value: str | None
    gpus: tuple[int, ...]
    invalid: str = ""
    duplicate: str = ""
    by_bus: bool = False


def parse_visible_devices(environ: Mapping[str, str], gpus: Sequence[HostGpu]) -> VisibleDevices:
    """Return which of ``gpus`` (in bus order) a process with this environment sees."""
    value = environ.get(VARIABLE)
    by_bus = environ.get(ORDER) == "PCI_BUS_ID"
    if value is None:
        return VisibleDevices(value=None, gpus=tuple(gpu.index for gpu in gpus), by_bus=by_bus)
    visible: list[int] = []
    for entry in (entry.strip() for entry in value.split(",")):
        index = _matching_gpu(entry, gpus)
        if index is None:
            return VisibleDevices(
                value=value,
                gpus=tuple(visible),
                invalid="" if entry in ("", "-1") else entry,
                by_bus=by_bus,
            )
        if index in visible:
            return VisibleDevices(value=value, gpus=(), duplicate=entry, by_bus=by_bus)
        visible.append(index)
    return VisibleDevices(value=value, gpus=tuple(visible), by_bus=by_bus)


def _matching_gpu(entry: str, gpus: Sequence[HostGpu]) -> int | None:
    """Return the GPU of an entry: a number, or a UUID prefix that matches exactly one GPU.

    MIG devices (``MIG-…``) are only resolved in their old form, which contains the GPU's UUID.
    """
    if entry.startswith(("GPU-", "MIG-GPU-")):
        prefix = entry.removeprefix("MIG-").partition("/")[0]
        matches = [gpu.index for gpu in gpus if gpu.uuid.startswith(prefix)]
        return matches[0] if len(matches) == 1 else None
    number = _LEADING.match(entry)
    index = int(number[0]) if number else -1
    return index if 0 <= index < len(gpus) else None

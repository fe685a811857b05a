"""Which GPUs a process will see, and in which order: CUDA_VISIBLE_DEVICES as CUDA and torch read it.

Numbers count in CUDA's order (CUDA_DEVICE_ORDER). The first entry that means no GPU ends the list, an entry that comes
twice empties it (CUDA C++ Programming Guide, environment variables; torch/cuda/__init__.py: _parse_visible_devices).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.facts.gpus import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_LEADING = re.compile(r"[+-]?\d+")


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    """``gpus``: the driver's numbers (NVML's) of what is visible, in the order of cuda:0, cuda:1, …

    ``said`` is the variable as set, None where it is not. ``wrong`` is the first entry that means no GPU here,
    ``twice`` one that comes again. ``by_bus``: numbers mean the order of the PCI bus, which is nvidia-smi's.
    """

    said: str | None
    gpus: tuple[int, ...]
    wrong: str = ""
    twice: str = ""
    by_bus: bool = False


def visible(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> Visible:
    """What of ``gpus`` (in the order of the bus) a process with this environment sees."""
    said = environ.get(VARIABLE)
    by_bus = environ.get(ORDER) == "PCI_BUS_ID"
    if said is None:
        return Visible(said=None, gpus=tuple(gpu.index for gpu in gpus), by_bus=by_bus)
    seen: list[int] = []
    for entry in (entry.strip() for entry in said.split(",")):
        index = _index(entry, gpus)
        if index is None:
            return Visible(said=said, gpus=tuple(seen), wrong="" if entry in ("", "-1") else entry, by_bus=by_bus)
        if index in seen:
            return Visible(said=said, gpus=(), twice=entry, by_bus=by_bus)
        seen.append(index)
    return Visible(said=said, gpus=tuple(seen), by_bus=by_bus)


def _index(entry: str, gpus: Sequence[Gpu]) -> int | None:
    """The GPU that an entry means: a number, or the beginning of a UUID that fits one GPU alone.

    The names of MIG devices (``MIG-…``) are not known here; they mean the GPU only in their old form, which names it.
    """
    if entry.startswith(("GPU-", "MIG-GPU-")):
        wanted = entry.removeprefix("MIG-").partition("/")[0]
        fitting = [gpu.index for gpu in gpus if gpu.uuid.startswith(wanted)]
        return fitting[0] if len(fitting) == 1 else None
    number = _LEADING.match(entry)
    index = int(number[0]) if number else -1
    return index if 0 <= index < len(gpus) else None

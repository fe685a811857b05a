"""Reads what an out-of-memory error says of the memory: torch's own words, older and newer, and those of the kernel.

The words of the CUDA, HIP, XPU and NPU allocators are those of torch's ``c10/cuda/CUDACachingAllocator.cpp`` and its
kin, from 1.13 on; MPS, the CPU's allocator, numpy, NCCL and Linux (``mm/oom_kill.c``) have words of their own. All are
text that somebody else wrote: what is not said, or cannot be, is None.
"""

from __future__ import annotations

import re

import msgspec

#: More text than that is no message of an allocator: 64 processes on one GPU make 4 kB.
_MOST_TEXT = 1 << 13
_MOST_PROCESSES = 256
#: Printed sizes have two digits behind the point, and no GPU has so much: NVML's "not known" is printed as 2**64 bytes.
_MOST_BYTES = 1 << 50

_SHIFT = {"K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = r"(\d{1,20}(?:\.\d{1,4})?) ?([KMGT]iB|[KMGT]B|bytes|B)\b"


class Process(msgspec.Struct, frozen=True):
    """A process that holds memory of the GPU; ``pid`` is as the driver counts, which is not as a container does."""

    pid: int
    bytes: int


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """What the error of one allocator tells, in bytes as printed (two digits). None: it does not say.

    ``device``: CUDA, HIP, XPU, NPU, MPS, NCCL or host; ``gpu``: its number among those that the process sees.
    ``wanted``: what was asked for; ``capacity`` of the GPU, ``allowed`` of it, ``free`` of it. ``mine``: of this
    process, all in all; of that ``allocated`` to tensors, ``graphs`` of it in private pools, and ``idle``: reserved by
    torch and given to no tensor. ``others``: further processes on this GPU.
    """

    device: str
    gpu: int | None = None
    wanted: int | None = None
    capacity: int | None = None
    allowed: int | None = None
    free: int | None = None
    mine: int | None = None
    allocated: int | None = None
    graphs: int | None = None
    idle: int | None = None
    others: tuple[Process, ...] = ()

    @property
    def held_by_others(self) -> int:
        """Bytes of other processes, as far as they are named."""
        return sum(each.bytes for each in self.others)

    @property
    def besides(self) -> int | None:
        """Bytes of this process outside of torch's allocator: CUDA's context, NCCL, libraries."""
        if self.mine is None or self.allocated is None or self.idle is None:
            return None
        return max(0, self.mine - self.allocated - self.idle)


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """A victim of Linux' out-of-memory killer. ``resident``: its bytes in memory; ``cgroup``: a limit was met."""

    pid: int
    name: str = ""
    resident: int | None = None
    cgroup: bool = False


def parse(text: str) -> Shortage | None:
    """What a line says of a shortage; None where it is no out-of-memory error."""
    text = text[:_MOST_TEXT]
    found = _DEVICE.search(text)
    if found is not None:
        name = "MPS" if found[1] == "MPS backend" else found[1]
        return _of_mps(text) if name == "MPS" else _of_device(name, text[found.start() :])
    for pattern, device in _ELSEWHERE:
        if (said := pattern.search(text)) is not None:
            sizes = [_bytes(*each) for each in _EACH.findall(said[0])]
            return Shortage(device=device, wanted=next(iter(sizes), None))
    return None


def killed(text: str) -> Killed | None:
    """The victim that a line of the kernel's log names."""
    found = _KILLED.search(text[:_MOST_TEXT])
    if found is None:
        return None
    resident = [int(each) << 10 for each in _RESIDENT.findall(text[:_MOST_TEXT])]
    cgroup = "cgroup out of memory" in text
    return Killed(pid=int(found[1]), name=found[2] or "", resident=sum(resident) or None, cgroup=cgroup)


_DEVICE = re.compile(r"\b(CUDA|HIP|XPU|NPU|MUSA|MLU|MPS backend) out of memory")
_EACH = re.compile(_SIZE)
_ELSEWHERE = (
    (re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate \d{1,20} bytes"),
     "host"),
    (re.compile(r"Unable to allocate " + _SIZE + r" for an array"), "host"),
    (re.compile(r"Failed to (?:CUDA|Cuda) (?:calloc|malloc|host alloc)\w*(?: async)? \d{1,20} bytes"), "NCCL"),
    (re.compile(r"Cuda failure '?(?:\d+ '?)?out of memory"), "NCCL"),
)  # fmt: skip
_KILLED = re.compile(r"[Kk]illed process (\d{1,10})(?: \(([^)]{0,64})\))?")
_RESIDENT = re.compile(r"\b(?:anon|file|shmem)-rss:(\d{1,15})kB")

_WANTED = re.compile(r"ried to allocate " + _SIZE)
_GPU = re.compile(r"[GNXM]PU (\d{1,4})\b")
_CAPACITY = (re.compile(r"total capac(?:i)?ty of " + _SIZE), re.compile(_SIZE + r" total capacity"))
_FREE = (re.compile(r"of which " + _SIZE + r" is free"), re.compile(_SIZE + r" free\b"))
_ALLOWED = (re.compile(_SIZE + r" allowed"), re.compile(r"max allowed: " + _SIZE))
_PROCESS = re.compile(r"Process (\d{1,10}) has " + _SIZE + r" memory in use")
_MINE = re.compile(r"this process has " + _SIZE + r" memory in use")
_ALLOCATED = (re.compile(r"allocated memory " + _SIZE + r" is allocated"), re.compile(_SIZE + r" already allocated"))
_GRAPHS = re.compile(r"with " + _SIZE + r" allocated in private pools")
_IDLE = re.compile(_SIZE + r" is reserved by PyTorch but unallocated")
_RESERVED = re.compile(_SIZE + r" reserved in total")


def _of_device(name: str, text: str) -> Shortage:
    allocated, reserved, idle = _first(text, *_ALLOCATED), _first(text, _RESERVED), _first(text, _IDLE)
    if idle is None and reserved is not None and allocated is not None:
        idle = max(0, reserved - allocated)
    gpu = _GPU.search(text)
    named = [(int(pid), _bytes(*size)) for pid, *size in _PROCESS.findall(text)[:_MOST_PROCESSES]]
    others = tuple(Process(pid, nbytes) for pid, nbytes in named if nbytes is not None)
    mine = _first(text, _MINE)
    if mine is None and "this process has" not in text:
        mine, others = _own(others, (allocated or 0) + (idle or 0))
    return Shortage(
        device=name, gpu=int(gpu[1]) if gpu else None, wanted=_first(text, _WANTED), capacity=_first(text, *_CAPACITY),
        allowed=_first(text, *_ALLOWED), free=_first(text, *_FREE), mine=mine, allocated=allocated,
        graphs=_first(text, _GRAPHS), idle=idle, others=others,
    )  # fmt: skip


def _own(named: tuple[Process, ...], reserved: int) -> tuple[int | None, tuple[Process, ...]]:
    """In a container torch does not know its own number on the host: the process that holds what torch reserved is it.

    The least that can hold it is taken; where torch has reserved nothing that tells, none is.
    """
    holding = [each for each in named if each.bytes >= reserved * 0.99]  # printed sizes are rounded
    if not reserved or not holding:
        return None, named
    own = min(holding, key=lambda each: each.bytes)
    return own.bytes, tuple(each for each in named if each is not own)


def _of_mps(text: str) -> Shortage:
    held = re.search(r"(?:MPS|currently) allocated: " + _SIZE, text)
    allocated = _bytes(held[1], held[2]) if held else None
    return Shortage(device="MPS", wanted=_first(text, _WANTED), allowed=_first(text, *_ALLOWED), allocated=allocated)


def _first(text: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if (found := pattern.search(text)) is not None:
            return _bytes(found[1], found[2])
    return None


def _bytes(number: str, unit: str) -> int | None:
    """The size in bytes; None for one that nobody has."""
    nbytes = round(float(number) * (1 << _SHIFT.get(unit[:1], 0)))
    return nbytes if nbytes < _MOST_BYTES else None

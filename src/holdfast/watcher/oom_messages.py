"""Parses out-of-memory errors: those of torch's allocators, older and newer, and of the kernel.

The texts of the CUDA, HIP, XPU and NPU allocators are those of torch's
``c10/cuda/CUDACachingAllocator.cpp`` and its variants since 1.13; MPS, the CPU allocator, numpy,
NCCL and Linux (``mm/oom_kill.c``) have others. All text is untrusted: a number that is missing or
impossible is None.
"""

from __future__ import annotations

import re

import msgspec

#: Longer text is no allocator message: 64 processes on one GPU take 4 kB.
_MAX_CHARACTERS = 1 << 13
_MAX_PROCESSES = 256
#: No GPU has so much memory: NVML's "unknown" is printed as 2**64 bytes.
_MAX_BYTES = 1 << 50

_SHIFT = {"K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = r"(\d{1,20}(?:\.\d{1,4})?) ?([KMGT]iB|[KMGT]B|bytes|B)\b"


class GpuMemoryUser(msgspec.Struct, frozen=True):
    """A process with memory on the GPU; ``pid`` is that of the host, not of a container."""

    pid: int
    bytes: int


class OomMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An out-of-memory error, in bytes as printed (two decimals). None: it does not say.

    ``device``: CUDA, HIP, XPU, NPU, MPS, NCCL or host; ``gpu``: its index among the visible ones.
    ``requested``: the size of the request; ``capacity`` of the GPU, ``allowed`` of it to this
    process, ``free`` of it. ``own``: total of this process; of that ``allocated`` to tensors
    (``graphs`` of it in private pools of CUDA graphs), and ``idle``: reserved by torch and not
    allocated. ``others``: other processes on this GPU.
    """

    device: str
    gpu: int | None = None
    requested: int | None = None
    capacity: int | None = None
    allowed: int | None = None
    free: int | None = None
    own: int | None = None
    allocated: int | None = None
    graphs: int | None = None
    idle: int | None = None
    others: tuple[GpuMemoryUser, ...] = ()

    @property
    def held_by_others(self) -> int:
        """Bytes of the other processes that the error names."""
        return sum(process.bytes for process in self.others)

    @property
    def outside_torch(self) -> int | None:
        """Bytes of this process outside torch's allocator: CUDA context, NCCL, libraries."""
        if self.own is None or self.allocated is None or self.idle is None:
            return None
        return max(0, self.own - self.allocated - self.idle)


class OomKill(msgspec.Struct, frozen=True, kw_only=True):
    """A victim of the Linux OOM killer: its resident bytes, and whether a cgroup limit was hit."""

    pid: int
    name: str = ""
    resident: int | None = None
    cgroup: bool = False


def parse_oom_message(text: str) -> OomMessage | None:
    """Parse a line; return None if it is no out-of-memory error."""
    text = text[:_MAX_CHARACTERS]
    match = _DEVICE.search(text)
    if match is not None:
        if match[1] == "MPS backend":
            return _parse_mps(text)
        return _parse_device(match[1], text[match.start() :])
    for pattern, device in _OTHER_ALLOCATORS:
        if (match := pattern.search(text)) is not None:
            sizes = [_bytes(*size) for size in _ANY_SIZE.findall(match[0])]
            return OomMessage(device=device, requested=next(iter(sizes), None))
    return None


def parse_oom_kill(text: str) -> OomKill | None:
    """Parse the victim from a line of the kernel log; return None if it names none."""
    text = text[:_MAX_CHARACTERS]
    match = _KILLED.search(text)
    if match is None:
        return None
    resident = sum(int(size) << 10 for size in _RESIDENT.findall(text))
    return OomKill(
        pid=int(match[1]),
        name=match[2] or "",
        resident=resident or None,
        cgroup="cgroup out of memory" in text,
    )


_DEVICE = re.compile(r"\b(CUDA|HIP|XPU|NPU|MUSA|MLU|MPS backend) out of memory")
_ANY_SIZE = re.compile(_SIZE)
_OTHER_ALLOCATORS = (
    (
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: "
            r"you tried to allocate \d{1,20} bytes"
        ),
        "host",
    ),
    (re.compile(r"Unable to allocate " + _SIZE + r" for an array"), "host"),
    (
        re.compile(
            r"Failed to (?:CUDA|Cuda) (?:calloc|malloc|host alloc)\w*(?: async)? \d{1,20} bytes"
        ),
        "NCCL",
    ),
    (re.compile(r"Cuda failure '?(?:\d+ '?)?out of memory"), "NCCL"),
)
_KILLED = re.compile(r"[Kk]illed process (\d{1,10})(?: \(([^)]{0,64})\))?")
_RESIDENT = re.compile(r"\b(?:anon|file|shmem)-rss:(\d{1,15})kB")

_REQUESTED = re.compile(r"ried to allocate " + _SIZE)
_GPU = re.compile(r"[GNXM]PU (\d{1,4})\b")
_CAPACITY = (re.compile(r"total capac(?:i)?ty of " + _SIZE), re.compile(_SIZE + r" total capacity"))
_FREE = (re.compile(r"of which " + _SIZE + r" is free"), re.compile(_SIZE + r" free\b"))
_ALLOWED = (re.compile(_SIZE + r" allowed"), re.compile(r"max allowed: " + _SIZE))
_PROCESS = re.compile(r"Process (\d{1,10}) has " + _SIZE + r" memory in use")
_OWN = re.compile(r"this process has " + _SIZE + r" memory in use")
_ALLOCATED = (
    re.compile(r"allocated memory " + _SIZE + r" is allocated"),
    re.compile(_SIZE + r" already allocated"),
)
_MPS_ALLOCATED = re.compile(r"(?:MPS|currently) allocated: " + _SIZE)
_GRAPHS = re.compile(r"with " + _SIZE + r" allocated in private pools")
_IDLE = re.compile(_SIZE + r" is reserved by PyTorch but unallocated")
_RESERVED = re.compile(_SIZE + r" reserved in total")


def _parse_device(name: str, text: str) -> OomMessage:
    allocated = _first_size(text, *_ALLOCATED)
    reserved, idle = _first_size(text, _RESERVED), _first_size(text, _IDLE)
    if idle is None and reserved is not None and allocated is not None:
        idle = max(0, reserved - allocated)
    gpu = _GPU.search(text)
    sizes = [(int(pid), _bytes(*size)) for pid, *size in _PROCESS.findall(text)[:_MAX_PROCESSES]]
    others = tuple(GpuMemoryUser(pid, nbytes) for pid, nbytes in sizes if nbytes is not None)
    own = _first_size(text, _OWN)
    if own is None and "this process has" not in text:
        own, others = _find_own(others, (allocated or 0) + (idle or 0))
    return OomMessage(
        device=name,
        gpu=int(gpu[1]) if gpu else None,
        requested=_first_size(text, _REQUESTED),
        capacity=_first_size(text, *_CAPACITY),
        allowed=_first_size(text, *_ALLOWED),
        free=_first_size(text, *_FREE),
        own=own,
        allocated=allocated,
        graphs=_first_size(text, _GRAPHS),
        idle=idle,
        others=others,
    )


def _find_own(
    processes: tuple[GpuMemoryUser, ...], reserved: int
) -> tuple[int | None, tuple[GpuMemoryUser, ...]]:
    """Return the bytes of this process, and the other processes.

    In a container torch does not know its pid on the host: this process is the smallest that holds
    at least what torch reserved. Unknown if torch reserved nothing.
    """
    # Printed sizes are rounded.
    candidates = [process for process in processes if process.bytes >= reserved * 0.99]
    if not reserved or not candidates:
        return None, processes
    own = min(candidates, key=lambda process: process.bytes)
    return own.bytes, tuple(process for process in processes if process is not own)


def _parse_mps(text: str) -> OomMessage:
    return OomMessage(
        device="MPS",
        requested=_first_size(text, _REQUESTED),
        allowed=_first_size(text, *_ALLOWED),
        allocated=_first_size(text, _MPS_ALLOCATED),
    )


def _first_size(text: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        if (match := pattern.search(text)) is not None:
            return _bytes(match[1], match[2])
    return None


def _bytes(number: str, unit: str) -> int | None:
    """Return the size in bytes; None if it is impossible."""
    nbytes = round(float(number) * (1 << _SHIFT.get(unit[:1], 0)))
    return nbytes if nbytes < _MAX_BYTES else None

"""Anonymous memory shared by the ranks of one host, which leaves nothing behind however they end.

The first rank of the host creates it (``memfd_create``), and the others open its descriptor through
/proc. Unlike a file in /dev/shm it is not limited by the 64 MiB of containers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.groups.rank_hosts import host_layout

_OK, _FAILED = "+", "-"
#: From <sys/mman.h> on Linux; Python's mmap does not define it.
_MAP_FIXED = 0x10
#: Processors whose stores become visible in program order (x86's total store order).
_ORDERED = frozenset({"x86_64", "AMD64", "i686"})


def create_segment(state: GroupState, purpose: str, size: int, limit_s: float) -> mmap.mmap | None:
    """Return ``size`` zero bytes shared by this group's ranks on this host; None if unavailable.

    All ranks of the group must call this within ``limit_s`` seconds; those of one host get the same
    answer.

    Raises:
        CollectiveTimeout: ranks of the group did not exchange their hosts
            (:func:`rank_hosts.host_layout`).
    """
    local_ranks = ranks_on_this_host(state)
    store = PrefixStore(f"segment/{purpose}/{local_ranks[0]}", state.store)
    rank = dist.get_rank()
    if rank == local_ranks[0]:
        segment, descriptor = _create(store, size)
    else:
        segment, descriptor = _open(store, size, limit_s)
    store.set(f"mapped/{rank}", _FAILED if segment is None else _OK)
    keys = [f"mapped/{local}" for local in local_ranks]
    try:
        store.wait(keys, timedelta(seconds=limit_s))
        all_mapped = all(answer == _OK.encode() for answer in store.multi_get(keys))
    except RuntimeError:
        all_mapped = False
    if descriptor >= 0:
        os.close(descriptor)
    return segment if all_mapped else None


def preserves_store_order() -> bool:
    """Return whether a reader of the last written number also sees all earlier writes."""
    return platform.machine() in _ORDERED


def make_private(pages: torch.Tensor) -> None:
    """Replace whole pages of a segment by private ones with equal contents, at the same address.

    Raises:
        OSError: the system has no memory for them.
    """
    contents = pages.clone()
    address, flags = pages.data_ptr(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc_mmap()(address, pages.nbytes, protection, flags, -1, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    pages.copy_(contents)


@cache
def _libc_mmap() -> Callable[..., int | None]:
    """Return mmap(2); Python's mmap takes no address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    integers = [ctypes.c_int] * 3
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *integers, ctypes.c_long]
    typed: Callable[..., int | None] = function
    return typed


def ranks_on_this_host(state: GroupState) -> tuple[int, ...]:
    """Return the ranks of the group on this rank's host, including itself."""
    rank = dist.get_rank()
    return next(ranks for ranks in host_layout(state) if rank in ranks)


def _create(store: Store, size: int) -> tuple[mmap.mmap | None, int]:
    """Return the memory, and its descriptor, which stays open until the others have mapped it."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("holdfast")
        os.posix_fallocate(descriptor, 0, size)  # else missing memory is a SIGBUS during a sum
        segment = mmap.mmap(descriptor, size)
    except (OSError, ValueError):
        segment = None
    store.set("path", _FAILED if segment is None else f"/proc/{os.getpid()}/fd/{descriptor}")
    return segment, descriptor


def _open(store: Store, size: int, limit_s: float) -> tuple[mmap.mmap | None, int]:
    descriptor = -1
    try:
        store.wait(["path"], timedelta(seconds=limit_s))
        path = store.get("path").decode()
        if path == _FAILED:
            return None, -1
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return mmap.mmap(descriptor, size), descriptor
    except (RuntimeError, OSError, ValueError):
        return None, descriptor

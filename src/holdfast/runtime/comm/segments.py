"""Memory that the ranks of one host share, and that has no name: whatever ends these processes, nothing is left behind.

The first rank of the host makes it (``memfd_create``), and the others open its descriptor through /proc. Unlike a file
in /dev/shm it is not bounded by the 64 MiB that containers have there.
"""

from __future__ import annotations

import mmap
import os
import platform
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.hosts import layout_of

_FAILED = "-"
#: Processors whose stores are seen in the order in which they were made (x86's total store order).
_ORDERED = frozenset({"x86_64", "AMD64", "i686"})


def share(state: GroupState, purpose: str, size: int, limit_s: float) -> mmap.mmap | None:
    """``size`` bytes of zeros, shared by this group's ranks on this host; None where that cannot be had.

    All ranks of the group have to ask, within ``limit_s`` seconds; those of one host get the same answer.

    Raises:
        CollectiveTimeout: ranks of the group never asked who shares a host (:func:`hosts.layout_of`).
    """
    mates = mates_of(state)
    store = PrefixStore(f"segment/{purpose}/{mates[0]}", state.store)
    me = dist.get_rank()
    made, descriptor = _make(store, size) if me == mates[0] else _join(store, size, limit_s)
    store.set(f"mapped/{me}", _FAILED if made is None else "+")
    keys = [f"mapped/{rank}" for rank in mates]
    try:
        store.wait(keys, timedelta(seconds=limit_s))
        whole = all(answer == b"+" for answer in store.multi_get(keys))
    except RuntimeError:
        whole = False
    if descriptor >= 0:
        os.close(descriptor)
    return made if whole else None


def keeps_order() -> bool:
    """Whether who sees a number that was written last sees all that was written before it."""
    return platform.machine() in _ORDERED


def mates_of(state: GroupState) -> tuple[int, ...]:
    """The ranks of the group on this rank's host, itself among them."""
    me = dist.get_rank()
    return next(ranks for ranks in layout_of(state) if me in ranks)


def _make(store: Store, size: int) -> tuple[mmap.mmap | None, int]:
    """The memory, and its descriptor, which stays open until the others have it."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("holdfast")
        os.posix_fallocate(descriptor, 0, size)  # else memory that is not there is a SIGBUS in the middle of a sum
        made = mmap.mmap(descriptor, size)
    except (OSError, ValueError):
        made = None
    store.set("name", _FAILED if made is None else f"/proc/{os.getpid()}/fd/{descriptor}")
    return made, descriptor


def _join(store: Store, size: int, limit_s: float) -> tuple[mmap.mmap | None, int]:
    descriptor = -1
    try:
        store.wait(["name"], timedelta(seconds=limit_s))
        name = store.get("name").decode()
        if name == _FAILED:
            return None, -1
        descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        return mmap.mmap(descriptor, size), descriptor
    except (RuntimeError, OSError, ValueError):
        return None, descriptor

"""Memory that the ranks of one host share: a file in /dev/shm that has no name any more when it is used.

The first rank of the host makes it, the others map it, and then its name is taken away: whatever ends these processes,
nothing is left behind.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.hosts import SHARED, layout_of

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
    made = _make(store, size) if me == mates[0] else _join(store, size, limit_s)
    store.set(f"mapped/{me}", _FAILED if made is None else "+")
    keys = [f"mapped/{rank}" for rank in mates]
    try:
        store.wait(keys, timedelta(seconds=limit_s))
        whole = all(answer == b"+" for answer in store.multi_get(keys))
    except RuntimeError:
        whole = False
    if me == mates[0]:
        _take_name_away(store)
    return made if whole else None


def keeps_order() -> bool:
    """Whether who sees a number that was written last sees all that was written before it."""
    return platform.machine() in _ORDERED


def mates_of(state: GroupState) -> tuple[int, ...]:
    """The ranks of the group on this rank's host, itself among them."""
    me = dist.get_rank()
    return next(ranks for ranks in layout_of(state) if me in ranks)


def _make(store: Store, size: int) -> mmap.mmap | None:
    path = SHARED / f"holdfast-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        store.set("name", _FAILED)
        return None
    try:
        os.posix_fallocate(descriptor, 0, size)  # else a full /dev/shm is a SIGBUS in the middle of a sum
        made = mmap.mmap(descriptor, size)
    except (OSError, ValueError):
        made = None
    finally:
        os.close(descriptor)
    store.set("name", str(path))
    return made


def _join(store: Store, size: int, limit_s: float) -> mmap.mmap | None:
    try:
        store.wait(["name"], timedelta(seconds=limit_s))
        name = store.get("name").decode()
        if name == _FAILED:
            return None
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (RuntimeError, OSError):
        return None
    try:
        return mmap.mmap(descriptor, size)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def _take_name_away(store: Store) -> None:
    with suppress(OSError):
        os.unlink(store.get("name").decode())  # noqa: PTH108 - a name that was never made is no path

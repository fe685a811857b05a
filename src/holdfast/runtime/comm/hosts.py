"""Which ranks of a group share a host, and with it memory."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.errors import CollectiveTimeout
from holdfast.report.text import duration
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.presence import say_missing

_LIMIT_S = 300.0

Layout = tuple[tuple[int, ...], ...]
_layouts: WeakKeyDictionary[dist.ProcessGroup, Layout] = WeakKeyDictionary()


def layout_of(state: GroupState, limit_s: float = _LIMIT_S) -> Layout:
    """The group's global ranks, host by host, in the order of each host's first rank; asked of the store once.

    All ranks of the group have to ask.

    Raises:
        CollectiveTimeout: ranks did not ask within ``limit_s`` seconds; it names them.
    """
    found = _layouts.get(state.group)
    if found is None:
        found = _layouts[state.group] = _ask(state, limit_s)
    return found


def known_layout(state: GroupState) -> Layout | None:
    """The same where it was asked for before, at no cost and without the others; else None."""
    return _layouts.get(state.group)


def _ask(state: GroupState, limit_s: float) -> Layout:
    store = PrefixStore("host", state.store)
    keys = [str(rank) for rank in state.ranks]
    store.set(str(dist.get_rank()), identity())
    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except RuntimeError as error:
        absent = tuple(rank for rank, key in zip(state.ranks, keys, strict=True) if not store.check([key]))
        why = f"{say_missing(absent)} did not come within {duration(limit_s)}"
        raise CollectiveTimeout(f"the first call in group {state.name!r}", why=why, missing=absent) from error
    hosts: dict[bytes, list[int]] = {}
    for rank, host in zip(state.ranks, store.multi_get(keys), strict=True):
        hosts.setdefault(bytes(host), []).append(rank)
    return tuple(tuple(ranks) for ranks in hosts.values())


def identity() -> str:
    """The same for all processes that see each other by their ids, and so can share memory; containers often do not."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{kernel}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"  # nothing is shared that could be proven to be

"""Determine which ranks of a group share a host, and thereby memory."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.training.collectives.groups.arrivals import arrival_timeout, ranks_without_key
from holdfast.training.collectives.groups.group_info import GroupState

_LIMIT_S = 300.0

HostLayout = tuple[tuple[int, ...], ...]
_layouts: WeakKeyDictionary[dist.ProcessGroup, HostLayout] = WeakKeyDictionary()


def host_layout(state: GroupState, limit_s: float = _LIMIT_S) -> HostLayout:
    """Return the group's global ranks by host, in the order of each host's first rank.

    All ranks of the group must call this; the first call exchanges hosts through the store.

    Raises:
        CollectiveTimeout: ranks did not call it within ``limit_s`` seconds; names them.
    """
    layout = _layouts.get(state.group)
    if layout is None:
        layout = _layouts[state.group] = _exchange_hosts(state, limit_s)
    return layout


def announce_host(state: GroupState) -> None:
    """Publish this rank's host."""
    _hosts(state).set(str(dist.get_rank()), host_identity())


def hosts_are_known(state: GroupState) -> bool:
    """Return whether all ranks have published their host, so that :func:`host_layout` is prompt."""
    return bool(_hosts(state).check([str(rank) for rank in state.ranks]))


def known_host_layout(state: GroupState) -> HostLayout | None:
    """Return the layout if it was exchanged before, without the other ranks; else None."""
    return _layouts.get(state.group)


def _exchange_hosts(state: GroupState, limit_s: float) -> HostLayout:
    store = _hosts(state)
    keys = [str(rank) for rank in state.ranks]
    announce_host(state)
    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except RuntimeError as error:
        missing = ranks_without_key(store, state.ranks)
        subject = f"the first call in group {state.name!r}"
        raise arrival_timeout(subject, missing, limit_s) from error
    hosts: dict[bytes, list[int]] = {}
    for rank, host in zip(state.ranks, store.multi_get(keys), strict=True):
        hosts.setdefault(bytes(host), []).append(rank)
    return tuple(tuple(ranks) for ranks in hosts.values())


def _hosts(state: GroupState) -> PrefixStore:
    return PrefixStore("host", state.store)


def host_identity() -> str:
    """Return a string that processes share if they see each other's ids, and so can share memory.

    Containers on one host often do not.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"  # shared memory cannot be proven

"""Makes process groups under names that their members have agreed on, wherever in the program these are.

``new_group`` numbers groups, and every rank of the job has to call it; with ``use_local_synchronization`` it names a
group by its ranks and the number of groups that this process knows, which differs between ranks of different groups
(torch 2.13, ``distributed_c10d.py``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.errors import InternalError
from holdfast.runtime.comm.groups import GroupState, job_store
from holdfast.runtime.comm.roll_call import meet

#: gloo gives five times its limit to connecting (measured: 20 s became 100 s).
_CONNECT_FACTOR = 5


def beside(state: GroupState, backend: str, purpose: str, limit: timedelta, timeout: float) -> dist.ProcessGroup:
    """A second group of the same ranks, for a purpose of ours, with a time limit of its own; all its ranks call it.

    Raises:
        CollectiveTimeout: ranks did not call it within ``timeout`` seconds; it names them.
    """
    until = time.monotonic() + timeout
    store = PrefixStore(purpose, state.store)
    name = meet(store, state.ranks, timeout, f"the making of the group of {purpose} beside {state.name!r}")
    left_s = max(until - time.monotonic(), 1.0)
    made = make_group(backend, state.ranks, f"{purpose}~{name}", left_s, {"default": limit})
    if made is None:
        raise InternalError("a rank that is no member makes a group")
    return made


def make_group(
    backend: str, members: tuple[int, ...], name: str, limit_s: float, limits: Mapping[str, timedelta], **more: str
) -> dist.ProcessGroup | None:
    """What ``new_group`` does, under a name of ours; None on a rank that is no member, and need not call it.

    Where NCCL splits communicators (``init_process_group(device_id=…)``), all ranks of the job have to call it, too.
    ``limits``: of collectives, by the type of device, or ``default``.
    """
    torchs: Any = c10d  # its types of names differ between versions
    own = dist.get_rank()
    fresh, _ = torchs._new_process_group_helper(  # noqa: SLF001
        len(members), members.index(own) if own in members else None, list(members), backend, job_store(), name,
        timeout=timedelta(seconds=limit_s / _CONNECT_FACTOR), **more,
    )  # fmt: skip
    if own not in members:
        return None
    c10d._world.pg_group_ranks[fresh] = {rank: place for place, rank in enumerate(members)}  # noqa: SLF001
    for device in fresh._device_types:  # noqa: SLF001
        limit = limits.get(device.type) or limits.get("default") or c10d.default_pg_timeout
        backend_of(fresh, device)._set_default_timeout(limit)  # noqa: SLF001
    made: dist.ProcessGroup = fresh
    return made


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """What does the group's collectives on the device; TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it."""
    backend = group._get_backend(device)  # noqa: SLF001
    return getattr(backend, "wrapped_pg", backend)

"""Create process groups under names that their members have agreed on, anywhere in the program.

``new_group`` numbers groups and must be called by every rank of the job. With
``use_local_synchronization`` it names a group by its ranks and the number of groups in this
process, which differs between ranks of different groups (torch 2.13, ``distributed_c10d.py``).
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

from holdfast.core.errors import CollectiveFailed, InternalError
from holdfast.training.collectives.groups.group_info import GroupState, job_store
from holdfast.training.collectives.groups.rendezvous import agree_on_name

#: gloo allows five times its timeout for connecting (measured: 20 s became 100 s).
_CONNECT_FACTOR = 5


def create_companion_group(
    state: GroupState, backend: str, purpose: str, limit: timedelta, timeout: float
) -> dist.ProcessGroup:
    """Create a second group of the same ranks with a timeout of its own; all its ranks call this.

    Raises:
        CollectiveTimeout: ranks did not call it within ``timeout`` seconds; names them.
    """
    deadline = time.monotonic() + timeout
    store = PrefixStore(purpose, state.store)
    subject = f"creation of the {purpose} group for {state.name!r}"
    name = agree_on_name(store, state.ranks, timeout, subject)
    left_s = max(deadline - time.monotonic(), 1.0)
    group = create_group(backend, state.ranks, f"{purpose}~{name}", left_s, {"default": limit})
    if group is None:
        raise InternalError("a rank that is not a member creates a companion group")
    return group


def create_group(
    backend: str,
    members: tuple[int, ...],
    name: str,
    limit_s: float,
    limits: Mapping[str, timedelta],
    **options: str,
) -> dist.ProcessGroup | None:
    """Create a group as ``new_group`` does, under our name; None on a rank that is not a member.

    Only members need to call it, except where NCCL splits communicators
    (``init_process_group(device_id=…)``): there all ranks of the job must. ``limits``: collective
    timeouts by device type, or ``default``.

    Raises:
        CollectiveFailed: this torch creates groups in another way.
    """
    untyped: Any = c10d  # its types of names differ between versions
    own_rank = dist.get_rank()
    group: dist.ProcessGroup
    try:
        group, _ = untyped._new_process_group_helper(  # noqa: SLF001
            len(members),
            members.index(own_rank) if own_rank in members else None,
            list(members),
            backend,
            job_store(),
            name,
            timeout=timedelta(seconds=limit_s / _CONNECT_FACTOR),
            **options,
        )
    except (AttributeError, TypeError) as error:
        why = f"torch {torch.__version__} creates groups in another way ({error})"
        step = "use a version of torch that docs/compatibility.md lists"
        raise CollectiveFailed(f"creation of group {name!r}", why=why, next_step=step) from error
    if own_rank not in members:
        return None
    group_ranks = c10d._world.pg_group_ranks  # noqa: SLF001
    group_ranks[group] = {rank: index for index, rank in enumerate(members)}
    for device in group._device_types:  # noqa: SLF001
        limit = limits.get(device.type) or limits.get("default") or c10d.default_pg_timeout
        backend_of(group, device)._set_default_timeout(limit)  # noqa: SLF001
    return group


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """Return the group's backend for the device, unwrapped if TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    backend = group._get_backend(device)  # noqa: SLF001
    return getattr(backend, "wrapped_pg", backend)

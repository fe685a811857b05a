"""Create a new group in place of a broken one, with its members and backend.

Behaviour of torch (2.13; measured, and read in distributed_c10d.py and ProcessGroupGloo.hpp):

* NCCL ends pending operations (``ProcessGroup.abort``, since torch 2.6). gloo's ``abort`` does
  nothing: a collective that waits for a peer ends with the group's own timeout, or when the peer
  closes its connections.
* Until then, dropping the last reference to the group waits in its destructor for gloo's threads:
  in ``destroy_process_group(group)``, or at process exit. So broken groups are removed from torch's
  registry but kept alive until their own timeout has certainly passed, and through interpreter
  exit.
* ``new_group(use_local_synchronization=True)`` names a group by its ranks and the number of groups
  in this process, which differs between ranks of different groups. A new group is therefore named
  by the tokens of its members.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.core.errors import CollectiveFailed, InternalError, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.call_text import first_line
from holdfast.training.collectives.groups.group_creation import backend_of, create_group
from holdfast.training.collectives.groups.group_info import (
    GroupState,
    broken_groups,
    forget_group,
    runs_alone,
    state_of,
)
from holdfast.training.collectives.groups.rendezvous import agree_on_name

REBUILD_LIMIT_S = 300.0
#: A group is kept this much longer than its timeout, for operations that waited in its queue.
_MARGIN_S = 30.0

#: Retired groups, with the monotonic time from which nothing in them can be pending.
_retired: list[tuple[float, dist.ProcessGroup]] = []
#: How often each group was rebuilt: a rendezvous prefix is used once.
_rebuilds: Counter[tuple[int, str, tuple[int, ...]]] = Counter()
_log = logging.getLogger("holdfast.comm")


@suggest_keywords
def rebuild(
    group: dist.ProcessGroup | None = None,
    *,
    ranks: Sequence[int] | None = None,
    timeout: float = REBUILD_LIMIT_S,
) -> dist.ProcessGroup:
    """Return a new group with the members, backend, timeout and description of ``group``.

    ``group`` is not used again. Only its members call this, or only ``ranks`` (global), if some are
    gone for good. Members still blocked in the broken group are waited for up to ``timeout``
    seconds. Other groups are unaffected.

    torch cannot replace its default group: None creates a group of all its ranks beside it. In a
    single process without groups, the result is None, too.

    Raises:
        InvalidValue: this rank is not a member, or not in ``ranks``, or those are not members.
        CollectiveTimeout: members did not call it within ``timeout`` seconds; names them. May be
            repeated.
        CollectiveFailed: the backend could not connect the members.
    """
    if runs_alone(group):
        return cast("dist.ProcessGroup", dist.group.WORLD)
    state = state_of(group, broken_too=True)
    members = _select_members(state, ranks, timeout)
    key = (state.epoch, state.name, members)
    subject = f"rebuild of group {state.name!r}"
    store = PrefixStore(f"rebuild/{'-'.join(map(str, members))}/{_rebuilds[key]}", state.store)
    deadline = time.monotonic() + timeout
    state.broken = state.broken or "it was rebuilt"
    # Once this returns, no member waits in the old group.
    token = agree_on_name(store, members, timeout, subject)
    name = f"{state.name.partition('~')[0]}~{token}"
    try:
        new_group = _create_like(state.group, members, name, max(deadline - time.monotonic(), 1.0))
    except RuntimeError as error:
        raise CollectiveFailed(subject, why=first_line(error)) from error
    _rebuilds[key] += 1
    retire_group(state)
    _log.warning("group %r is replaced by %r: %s", state.name, name, state.broken)
    return new_group


def _select_members(
    state: GroupState, ranks: Sequence[int] | None, timeout: float
) -> tuple[int, ...]:
    members = state.ranks
    if ranks is not None:
        members = tuple(rank for rank in state.ranks if rank in set(ranks))
    why = ""
    if ranks is not None and len(members) != len(ranks):
        why = f"ranks {list(ranks)} are not all members; the members are {list(state.ranks)}"
    elif dist.get_rank() not in members:
        why = "this rank is not among the members of the new group"
    elif not timeout > 0:
        why = f"timeout={timeout} must be a positive number of seconds"
    if why:
        raise InvalidValue(f"the rebuild of group {state.name!r}", why=why)
    return members


def _create_like(
    old: dist.ProcessGroup, members: tuple[int, ...], name: str, limit_s: float
) -> dist.ProcessGroup:
    limits = {device.type: _timeout_of(old, device) for device in old._device_types}  # noqa: SLF001
    # torch has descriptions from 2.4.
    options = {"group_desc": old.group_desc} if getattr(old, "group_desc", None) else {}
    group = create_group(dist.get_backend(old), members, name, limit_s, limits, **options)
    if group is None:
        raise InternalError("a rank that is not a member rebuilds a group")
    return group


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """Return the timeout of the group; torch's default if its backend does not expose it."""
    options = getattr(backend_of(group, device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else c10d.default_pg_timeout


# ---- the old group


def retire_group(state: GroupState) -> None:
    """End pending operations as far as the backend can, and remove the group from torch's registry.

    The default group stays registered: all others would be removed with it.
    """
    now = time.monotonic()
    for expiry, old in [entry for entry in _retired if entry[0] < now]:
        _retired.remove((expiry, old))
        forget_group(old)
    group = state.group
    if group is dist.group.WORLD or group not in c10d._world.pg_map:  # noqa: SLF001
        return
    devices = group._device_types  # noqa: SLF001
    limit_s = max(_timeout_of(group, device).total_seconds() for device in devices)
    _retired.append((now + limit_s + _MARGIN_S, group))
    # The former since torch 2.6.
    abort = getattr(c10d, "_abort_process_group", dist.destroy_process_group)
    abort(group)


def _leak_broken_groups() -> None:
    """Keep broken groups alive at process exit, because their destructor would wait for peers."""
    for group in {*(group for _, group in _retired), *broken_groups()}:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


atexit.register(_leak_broken_groups)

"""A fresh group in the place of one that is broken: its members and backend, over a prefix of the store of its own.

What is known of torch (2.13, measured, and read in distributed_c10d.py and ProcessGroupGloo.hpp):

* NCCL ends what is under way (``ProcessGroup.abort``, since torch 2.6). gloo's ``abort`` does nothing: a collective
  that waits for a peer ends with the group's own time limit, or when the peer closes its connections.
* Until then whoever drops the last reference to the group waits in its destructor for gloo's threads: in
  ``destroy_process_group(group)``, or at the end of the process. So broken groups are taken out of torch's books and
  kept, until their own limit is over for certain, and past the end of the interpreter.
* ``new_group(use_local_synchronization=True)`` names a group by its ranks and the number of groups that this process
  knows, which differs between ranks that are in different groups. A fresh group is named by its members' words instead.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore

from holdfast.errors import BadValue, CollectiveFailed, InternalError
from holdfast.runtime.comm.groups import GroupState, broken_groups, forget, state_of
from holdfast.runtime.comm.making import backend_of, make_group
from holdfast.runtime.comm.roll_call import meet

REBUILD_LIMIT_S = 300.0
#: A group whose limit is over is kept for this much longer, for the work that waited in its queue.
_MARGIN_S = 30.0

#: Groups that are not used any more, with the monotonic time from which on nothing in them can be under way.
_retired: list[tuple[float, dist.ProcessGroup]] = []
#: How often each group was rebuilt: a meeting place is used once.
_rebuilt: dict[tuple[int, str, tuple[int, ...]], int] = {}
_log = logging.getLogger("holdfast.comm")


def rebuild(
    group: dist.ProcessGroup | None = None, *, ranks: Sequence[int] | None = None, timeout: float = REBUILD_LIMIT_S
) -> dist.ProcessGroup:
    """A fresh group with the members, backend, limit and description of ``group``, which is not used again.

    All its members call it, or all ``ranks`` (global ones, where some are gone for good), and nobody else has to. A
    member that still waits in the broken group is waited for, ``timeout`` seconds at most. Other groups go on.

    torch cannot replace its default group: for None a group of all its ranks is made beside it, to be named in calls.

    Raises:
        BadValue: this rank is no member of the group, or not among ``ranks``, or these are no members.
        CollectiveTimeout: members did not come within ``timeout`` seconds; it names them, and may be called again.
        CollectiveFailed: all came, and the backend could not connect them.
    """
    state = state_of(group, broken_too=True)
    members = _members(state, ranks, timeout)
    place = (state.epoch, state.name, members)
    subject = f"the rebuilding of group {state.name!r}"
    store = PrefixStore(f"rebuild/{'-'.join(map(str, members))}/{_rebuilt.get(place, 0)}", state.store)
    until = time.monotonic() + timeout
    state.broken = state.broken or "it was rebuilt"
    met = meet(store, members, timeout, subject)  # from here on nobody waits in the old one
    name = f"{state.name.partition('~')[0]}~{met}"
    try:
        fresh = _make_like(state.group, members, name, max(until - time.monotonic(), 1.0))
    except RuntimeError as error:
        raise CollectiveFailed(subject, why=str(error).strip().partition("\n")[0][:300]) from error
    _rebuilt[place] = _rebuilt.get(place, 0) + 1
    retire(state)
    _log.warning("group %r is not used again (%s); %r takes its place", state.name, state.broken, name)
    return fresh


def _members(state: GroupState, ranks: Sequence[int] | None, timeout: float) -> tuple[int, ...]:
    members = state.ranks if ranks is None else tuple(rank for rank in state.ranks if rank in set(ranks))
    why = ""
    if ranks is not None and len(members) != len(ranks):
        why = f"the ranks {list(ranks)} are not among its members {list(state.ranks)}"
    elif dist.get_rank() not in members:
        why = "this rank is not among those that go on"
    elif not timeout > 0:
        why = f"its time limit is {timeout} s; give a positive one"
    if why:
        raise BadValue(f"group {state.name!r} was to be rebuilt", why=why)
    return members


def _make_like(old: dist.ProcessGroup, members: tuple[int, ...], name: str, limit_s: float) -> dist.ProcessGroup:
    limits = {device.type: _limit_of(old, device) for device in old._device_types}  # noqa: SLF001
    fresh = make_group(dist.get_backend(old), members, name, limit_s, limits, **_description(old))
    if fresh is None:
        raise InternalError("a rank that is no member rebuilds a group")
    return fresh


def _description(group: dist.ProcessGroup) -> dict[str, str]:
    """The group's own, where this torch has it (from 2.4)."""
    return {"group_desc": group.group_desc} if getattr(group, "group_desc", None) else {}


def _limit_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """The time limit that the group was made with; torch's default where its backend does not tell."""
    options = getattr(backend_of(group, device), "options", None)
    limit = getattr(options, "_timeout", None)
    return limit if isinstance(limit, timedelta) else c10d.default_pg_timeout


# ---- what becomes of the old one


def retire(state: GroupState) -> None:
    """End what is under way in the group as far as its backend can, and take it out of torch's books.

    The default group stays in them: all others would go with it.
    """
    now = time.monotonic()
    for over, past in [each for each in _retired if each[0] < now]:
        _retired.remove((over, past))
        forget(past)
    group = state.group
    if group is dist.group.WORLD or group not in c10d._world.pg_map:  # noqa: SLF001
        return
    limit_s = max(_limit_of(group, device).total_seconds() for device in group._device_types)  # noqa: SLF001
    _retired.append((now + limit_s + _MARGIN_S, group))
    end = getattr(c10d, "_abort_process_group", dist.destroy_process_group)  # the former since torch 2.6
    end(group)


def _leave_groups() -> None:
    """At the end of the process: give broken groups a lasting reference, as their destructor would wait for peers."""
    for group in {*(group for _, group in _retired), *broken_groups()}:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


atexit.register(_leave_groups)

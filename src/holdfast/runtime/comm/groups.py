"""What is known of a process group beside what torch keeps: members, store, number of calls, and if it is whole."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast import settings
from holdfast.errors import BadValue, GroupBroken, InternalError

#: Below this prefix all keys of this room stand in the job's store.
PREFIX = "holdfast/comm"


@dataclass
class GroupState:
    """One group as this rank knows it. ``calls`` counts the bounded calls made in it, the same on all its ranks.

    ``broken`` says why the group is not used any more; empty while it is. ``epoch`` counts the default groups of this
    process: after ``destroy_process_group`` names begin anew, in a store that may be the same.
    """

    reference: weakref.ref[dist.ProcessGroup]
    name: str
    ranks: tuple[int, ...]
    device: torch.device
    epoch: int
    calls: int = 0
    broken: str = ""
    #: What other modules of this room keep for the group, by their own class.
    kept: dict[type, Any] = field(default_factory=dict)
    #: Tensors that the group is known to sum, by shape, dtype, device and layout, and the words of such a call.
    sums: dict[object, str] = field(default_factory=dict)
    _backends: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> dist.ProcessGroup:
        """The group itself, which is not kept alive. Raises GroupBroken: it was destroyed."""
        found = self.reference()
        if found is None:
            raise GroupBroken(repr(self.name), why="it was destroyed")
        return found

    def backend_for(self, device: str) -> str:
        """Name of the backend that moves tensors on this type of device; empty where the group has none."""
        found = self._backends.get(device)
        if found is None:
            try:
                found = str(self.group._get_backend(torch.device(device)).name())  # noqa: SLF001 - no public way
            except RuntimeError:
                found = ""
            self._backends[device] = found
        return found

    @cached_property
    def may_wait_again(self) -> bool:
        """Whether a wait that ran out leaves its work as it was: on gloo.

        NCCL aborts the communicator then (torch 2.6 and later, ``WorkNCCL::wait`` in ProcessGroupNCCL.cpp).
        """
        types = self.group._device_types  # noqa: SLF001 - no public way
        return {self.backend_for(device.type) for device in types} == {"gloo"}

    @property
    def store(self) -> Store:
        """The job's store, below a prefix of this group's own."""
        return PrefixStore(f"{PREFIX}/{self.epoch}/{self.name}", job_store())


class Numbers:
    """Numbers for what all ranks make in the same order.

    They begin anew with each generation: a rank that went on in place (``runtime/surviving.py``) meets new processes.
    """

    def __init__(self) -> None:
        self._generation, self._numbers = -1, count(1)

    def next(self) -> int:
        """The next one."""
        if self._generation != (now := generation()):
            self._generation, self._numbers = now, count(1)
        return next(self._numbers)


_default = dist.GroupMember
_epochs: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
_numbers = Numbers()
_EPOCHS_A_GENERATION = 1 << 20
#: By the id of the group, which is nobody else's as long as its reference lives.
_states: dict[int, GroupState] = {}


def state_of(group: dist.ProcessGroup | None, *, broken_too: bool = False) -> GroupState:
    """What is known of the group; None means the default one. ``broken_too``: also where it is not used any more.

    Raises:
        BadValue: there is no process group, or this rank is no member of this one.
        GroupBroken: a call in it timed out or failed.
    """
    actual = group if group is not None else _default.WORLD
    found = _states.get(id(actual))
    if found is None or found.reference() is not actual:
        found = _first_seen(group)
    if found.broken and not broken_too:
        raise GroupBroken(repr(found.name), why=found.broken)
    return found


def _first_seen(group: dist.ProcessGroup | None) -> GroupState:
    if not dist.is_initialized():
        raise BadValue("a collective was called", why="there is no process group yet",
                       next_step="call torch.distributed.init_process_group first")  # fmt: skip
    if group is not None and not isinstance(group, dist.ProcessGroup):  # GroupMember.NON_GROUP_MEMBER
        raise BadValue("a collective was called", why="this rank is no member of its group",
                       next_step="let only members call it, or give no group")  # fmt: skip
    actual = group if group is not None else dist.group.WORLD
    if actual is None:
        raise InternalError("torch says that it is initialised and has no default group")
    if actual not in dist.distributed_c10d._world.pg_map:  # noqa: SLF001 - there is no public way to ask
        raise GroupBroken(repr(actual.group_name), why="it was destroyed")
    key = id(actual)
    reference = weakref.ref(actual, lambda _: _states.pop(key, None))
    made = _states[key] = GroupState(
        reference, actual.group_name, tuple(dist.get_process_group_ranks(actual)), _device(actual), epoch()
    )
    return made


def broken_groups() -> list[dist.ProcessGroup]:
    """Groups of this process that are not used any more."""
    found = [state.reference() for state in _states.values() if state.broken]
    return [group for group in found if group is not None]


def forget(group: dist.ProcessGroup) -> None:
    """Drop what is known of a group."""
    _states.pop(id(group), None)


def epoch() -> int:
    """A number of the default group, the same on all ranks, and of no other group of this process."""
    world = dist.group.WORLD
    if world is None:
        raise InternalError("torch says that it is initialised and has no default group")
    if world not in _epochs:
        _epochs[world] = generation() * _EPOCHS_A_GENERATION + _numbers.next()
    return _epochs[world]


def generation() -> int:
    """How often the ranks were started again, as the launcher tells it; 0 without one."""
    return int(settings.text("TORCHELASTIC_RESTART_COUNT") or 0)


def _device(group: dist.ProcessGroup) -> torch.device:
    """Where small tensors for this group have to lie: in host memory where its backend takes that."""
    backends = dist.get_backend_config(group) if hasattr(dist, "get_backend_config") else dist.get_backend(group)
    host = any(word in str(backends).lower() for word in ("cpu:", "gloo", "mpi"))
    return torch.device("cpu") if host else torch.device("cuda", torch.cuda.current_device())


def job_store() -> Store:
    """The store that the default group was made with. torch has no public name for it."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - in every torch from 1.8 to 2.13

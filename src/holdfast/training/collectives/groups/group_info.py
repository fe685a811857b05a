"""State of a process group: members, store, number of calls, and whether it is broken."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.core import settings
from holdfast.core.errors import GroupBroken, InternalError, InvalidValue

#: Prefix of all keys of this package in the job's store.
PREFIX = "holdfast/comm"


@dataclass
class GroupState:
    """One group as this rank sees it; ``calls`` counts its bounded calls, equal on all its ranks.

    ``broken`` says why the group is not used again; empty while it is. ``epoch`` counts the default
    groups of this process: after ``destroy_process_group`` names repeat, maybe in the same store.
    """

    reference: weakref.ref[dist.ProcessGroup]
    name: str
    ranks: tuple[int, ...]
    device: torch.device
    epoch: int
    calls: int = 0
    broken: str = ""
    #: When this rank entered its latest call, by the monotonic clock.
    entered_at: float = -math.inf
    #: Objects of other modules of this package for the group, by their class.
    cache: dict[type, Any] = field(default_factory=dict)
    #: Signatures of sums, by the shape, dtype, device and layout of tensors the group can sum.
    sum_signatures: dict[object, str] = field(default_factory=dict)
    #: By the same, sums of which a later one needs the least preparation (``bounded_wait``).
    simple_sums: dict[object, Any] = field(default_factory=dict)
    _backends: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> dist.ProcessGroup:
        """Return the group, which is not kept alive. Raises GroupBroken if it was destroyed."""
        group = self.reference()
        if group is None:
            raise GroupBroken(repr(self.name), why="it was destroyed")
        return group

    def backend_for(self, device: str) -> str:
        """Return the backend for tensors on this type of device; empty if the group has none."""
        name = self._backends.get(device)
        if name is None:
            try:
                backend = self.group._get_backend(torch.device(device))  # noqa: SLF001 - not public
                name = str(backend.name())
            except RuntimeError:
                name = ""
            self._backends[device] = name
        return name

    @cached_property
    def can_repeat_wait(self) -> bool:
        """Return whether an expired wait leaves its work unharmed, as on gloo.

        NCCL then aborts the communicator (torch 2.6 and later, ``WorkNCCL::wait`` in
        ProcessGroupNCCL.cpp).
        """
        types = self.group._device_types  # noqa: SLF001 - not public
        return {self.backend_for(device.type) for device in types} == {"gloo"}

    @property
    def store(self) -> Store:
        """Return the job's store with this group's prefix."""
        return PrefixStore(f"{PREFIX}/{self.epoch}/{self.name}", job_store())


class GenerationCounter:
    """Numbers for objects that all ranks create in the same order.

    The count restarts with each generation: a rank that was restarted in process
    (``training/in_process_restart.py``) has new processes as peers.
    """

    def __init__(self) -> None:
        self._generation, self._numbers = -1, count(1)

    def next(self) -> int:
        """Return the next number, from 1."""
        if self._generation != (now := generation()):
            self._generation, self._numbers = now, count(1)
        return next(self._numbers)


_default = dist.GroupMember
_epochs: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
_epoch_counter = GenerationCounter()
_EPOCHS_PER_GENERATION = 1 << 20
#: By the id of the group, which stays unique while the reference lives.
_states: dict[int, GroupState] = {}


def state_of(group: dist.ProcessGroup | None, *, broken_too: bool = False) -> GroupState:
    """Return the state of the group, None for the default one; ``broken_too`` permits a broken one.

    Raises:
        InvalidValue: there is no process group, or this rank is not a member of this one.
        GroupBroken: a call in it timed out or failed.
    """
    actual = group if group is not None else _default.WORLD
    state = _states.get(id(actual))
    if state is None or state.reference() is not actual:
        state = _create_state(group)
    if state.broken and not broken_too:
        raise GroupBroken(repr(state.name), why=state.broken)
    return state


def runs_alone(group: dist.ProcessGroup | None) -> bool:
    """Return whether this process is the whole job: it has no process group and needs none."""
    if group is not None or _default.WORLD is not None:
        return False
    return int(settings.read_text("WORLD_SIZE") or 1) == 1


def _create_state(group: dist.ProcessGroup | None) -> GroupState:
    if not dist.is_initialized():
        raise InvalidValue(
            "the collective call",
            why="there is no process group yet",
            next_step="call torch.distributed.init_process_group first",
        )
    # GroupMember.NON_GROUP_MEMBER
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise InvalidValue(
            "the collective call",
            why="this rank is not a member of its group",
            next_step="call it only on members, or pass no group",
        )
    actual = group if group is not None else _default_group()
    if actual not in dist.distributed_c10d._world.pg_map:  # noqa: SLF001 - not public
        raise GroupBroken(repr(actual.group_name), why="it was destroyed")
    key = id(actual)
    state = _states[key] = GroupState(
        weakref.ref(actual, lambda _: _states.pop(key, None)),
        actual.group_name,
        tuple(dist.get_process_group_ranks(actual)),
        _small_tensor_device(actual),
        epoch(),
    )
    return state


def broken_groups() -> list[dist.ProcessGroup]:
    """Return the broken groups of this process."""
    groups = [state.reference() for state in _states.values() if state.broken]
    return [group for group in groups if group is not None]


def forget_group(group: dist.ProcessGroup) -> None:
    """Drop the state of a group."""
    _states.pop(id(group), None)


def epoch() -> int:
    """Return a number of the default group: equal on all ranks, unique in this process."""
    world = _default_group()
    if world not in _epochs:
        _epochs[world] = generation() * _EPOCHS_PER_GENERATION + _epoch_counter.next()
    return _epochs[world]


def generation() -> int:
    """Return how often the ranks were restarted, by the launcher's count; 0 without a launcher."""
    return int(settings.read_text("TORCHELASTIC_RESTART_COUNT") or 0)


def job_store() -> Store:
    """Return the store of the default group; torch (1.8 to 2.13) has no public name for it."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001


def _default_group() -> dist.ProcessGroup:
    world = dist.group.WORLD
    if world is None:
        raise InternalError("torch.distributed is initialized without a default group")
    return world


def _small_tensor_device(group: dist.ProcessGroup) -> torch.device:
    """Return the device for small tensors: the host if the group's backend accepts that."""
    has_config = hasattr(dist, "get_backend_config")
    backends = dist.get_backend_config(group) if has_config else dist.get_backend(group)
    on_host = any(word in str(backends).lower() for word in ("cpu:", "gloo", "mpi"))
    return torch.device("cpu") if on_host else torch.device("cuda", torch.cuda.current_device())

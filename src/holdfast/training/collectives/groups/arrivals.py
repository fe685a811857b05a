"""One call with a timeout, and which ranks have entered it.

A rank that has waited for a while announces in the job's store that it is in the call.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from holdfast.core.errors import CollectiveTimeout
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.text import format_duration
from holdfast.training.collectives.groups.group_info import GroupState

#: Share of its timeout, and least seconds, by which a call may exceed it.
GRACE_SHARE, MIN_GRACE_S = 0.1, 0.25

_OWN_PACKAGE = str(Path(__file__).resolve().parents[3])


@dataclass(slots=True)
class BoundedCall:
    """One call of a group. Times are of the monotonic clock, in seconds.

    ``signature`` describes it, equally on all ranks: ``all_reduce of 467,019,003 float32``.
    ``number`` counts the calls of the group, which all its ranks make in the same order.
    """

    signature: str
    state: GroupState
    number: int
    limit_s: float
    deadline: float
    #: When the log reports that the call waits.
    warn_at: float
    #: When a rank that polls next checks its peers in the store.
    check_at: float
    #: Bytes that a rank sends, or receives if that is more; 0 if they do not measure the link.
    nbytes: int = 0
    #: Completion from then on is agreed with the other ranks: one of them may have timed out.
    agree_from: float = -math.inf
    #: The part of the call that completes next, equal on all ranks.
    stage: int = 0
    #: Time beyond the deadline, because another rank has completed the call.
    extension_s: float = 0.0
    is_announced: bool = False
    #: The reduced tensor is a copy that no caller has, so the backend may work on it directly.
    owns_tensor: bool = False
    #: The user's line, once determined: threads that query the store have another stack.
    known_site: str = ""

    @property
    def waited_s(self) -> float:
        """Return the seconds since the call began."""
        return self.limit_s - (self.deadline - time.monotonic())

    @property
    def left_s(self) -> float:
        """Return the seconds until the call times out."""
        return self.deadline + self.extension_s - time.monotonic()

    @property
    def grace_s(self) -> float:
        """Return :func:`grace_of` the timeout."""
        return grace_of(self.limit_s)

    @property
    def site(self) -> str:
        """Return the user's line that made the call, as ``train.py:41``."""
        self.known_site = self.known_site or find_call_site()
        return self.known_site

    def __str__(self) -> str:
        return f"{self.signature} (call {self.number} in group {self.state.name!r})"

    def key(self, name: object) -> str:
        """Return a key of this call in the group's store."""
        return f"{self.number}/{name}"


def grace_of(limit_s: float) -> float:
    """Return how long ranks may take to agree on the outcome of a call after its timeout."""
    return max(GRACE_SHARE * limit_s, MIN_GRACE_S)


def announce_arrival(call: BoundedCall) -> None:
    """Write once to the store that this rank is in the call, what it calls, and where."""
    if not call.is_announced:
        arrival = json.dumps({"signature": call.signature, "site": call.site})
        call.state.store.set(call.key(dist.get_rank()), arrival)
        call.is_announced = True


def missing_ranks(call: BoundedCall) -> tuple[int, ...]:
    """Return the members that have not announced that they are in the call."""
    return ranks_without_key(call.state.store, call.state.ranks, call.key)


def announced_calls(call: BoundedCall) -> dict[int, dict[str, str]]:
    """Return ``signature`` and ``site`` of each rank that has announced its arrival."""
    store = call.state.store
    arrived = [rank for rank in call.state.ranks if store.check([call.key(rank)])]
    return {rank: json.loads(store.get(call.key(rank))) for rank in arrived}


def ranks_without_key(
    store: Store, ranks: Iterable[int], key: Callable[[object], str] = str
) -> tuple[int, ...]:
    """Return the ranks whose ``key(rank)`` is not set in the store."""
    return tuple(rank for rank in ranks if not store.check([key(rank)]))


def arrival_timeout(subject: object, missing: tuple[int, ...], limit_s: float) -> CollectiveTimeout:
    """Return the error that names the ranks that ``subject`` waited for in vain."""
    why = f"{describe_ranks(missing)} did not arrive within {format_duration(limit_s)}"
    return CollectiveTimeout(subject, why=why, missing=missing)


def explain_timeout(missing: Sequence[int], limit_s: float) -> str:
    """Return why a call timed out, in words that are equal on all ranks."""
    limit = format_duration(limit_s)
    why = f"all ranks entered it, and it did not finish within {limit}"
    if missing:
        why = f"{describe_ranks(missing)} did not arrive within {limit}"
    return f"{why}, the timeout of rank {dist.get_rank()}"


def find_call_site() -> str:
    """Return the user's line that made the call: the innermost frame outside holdfast."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads the sources of all frames
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"

"""Check now and then that all ranks are at the same step, with equal batch counts and parameters.

A check is one all-reduce of six numbers in a gloo group of its own, concurrent with training; its
result is read when the next check is due. Every rank reads it at the same call, so that all raise
at the same place.
"""

from __future__ import annotations

import atexit
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue, RanksOutOfSync
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.collectives.backend_calls import start_all_reduce
from holdfast.training.collectives.bounded_wait import begin_call, poll_until, wait_for_works
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_creation import create_companion_group
from holdfast.training.collectives.groups.group_info import GroupState, runs_alone, state_of

#: Timeout for a rank that has not entered a check when the others are at the next one.
LOCKSTEP_LIMIT_S = 300.0
#: A check reads at most this many bytes of parameters; the next one continues after them.
BYTES_PER_CHECK = 64 * 2**20
_FIELDS = ("step", "batches", "parameters")
_SIGNATURE = "lockstep check"
#: A field that the rank does not report.
_NONE = -1


@suggest_keywords
def lockstep(
    step: int,
    *,
    every: int = 50,
    batches: int | None = None,
    parameters: Iterable[torch.Tensor] | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float = LOCKSTEP_LIMIT_S,
) -> None:
    """Report this rank's step; the first call and every ``every``-th after it starts a check.

    The result of a check is raised by the next one. Checks count calls and not steps, so that a
    rank that resumed from another checkpoint is found too. ``batches``: how many this rank has
    read. ``parameters``: of the model, if all ranks of the group hold the same; each check reads up
    to 64 MiB, so that several checks cover all. For sharded parameters pass the group of ranks that
    hold the same shard.

    Raises:
        RanksOutOfSync: on every rank; names the ranks that differ from the majority, and how.
        CollectiveTimeout: ranks did not enter the last check within ``timeout`` seconds; names
            them.
        InvalidValue, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    if runs_alone(group):
        return
    key = group if group is not None else dist.group.WORLD
    checker = _checkers.get(key)  # type: ignore[arg-type]
    if checker is None:
        checker = _create_checker(group, every, timeout)
    checker.calls += 1
    if (checker.calls - 1) % every == 0:
        checker.finish_check(timeout)
        checker.start_check(step, batches, parameters)


class LockstepChecker:
    """The checks of one group. ``calls`` counts calls of :func:`lockstep`, equal on all ranks."""

    def __init__(self, checked: GroupState, timeout: float) -> None:
        self.calls = 0
        self._name = checked.name  # a reference to the group itself would keep it alive
        limit = timedelta(seconds=timeout)
        self._state = state_of(create_companion_group(checked, "gloo", "lockstep", limit, timeout))
        self._own_values = (0, _NONE, _NONE)
        self._shared = torch.empty(0)
        self._work: dist.Work | None = None
        self._next_parameter = 0

    def finish_check(self, limit_s: float) -> None:
        """Wait for the pending check, and raise if the ranks differ."""
        if self._work is None:
            return
        call = begin_call(self._state, _SIGNATURE, limit_s)
        call.agree_from = -math.inf  # another rank may be in this check since it was started
        work, self._work = self._work, None
        wait_for_works([work], call)
        largest, inverted_smallest = self._shared.view(2, -1).tolist()
        if largest != [~value for value in inverted_smallest]:
            self._raise_difference(call)

    def start_check(
        self, step: int, batches: int | None, parameters: Iterable[torch.Tensor] | None
    ) -> None:
        """Start a check of this rank's values."""
        checksum = _NONE if parameters is None else self._checksum(list(parameters))
        self._own_values = (step, _NONE if batches is None else batches, checksum)
        values = torch.tensor(self._own_values, dtype=torch.int64)
        self._shared = torch.cat([values, ~values])
        self._work = start_all_reduce(self._shared, dist.ReduceOp.MAX, self._state)

    def _checksum(self, parameters: Sequence[torch.Tensor]) -> int:
        """Return a position-dependent checksum of as many next parameters as one check may read."""
        if not parameters:
            return _NONE
        first, size, sums = self._next_parameter % len(parameters), 0, []
        for parameter in islice((*parameters, *parameters), first, first + len(parameters)):
            sums.append(sum_bits(parameter))
            size += parameter.numel() * parameter.element_size()
            if size >= BYTES_PER_CHECK:
                break
        self._next_parameter = (first + len(sums)) % len(parameters)
        stacked = torch.stack(sums)
        # Odd weights, so that no bit is lost.
        weights = torch.arange(1, 2 * len(sums), 2, device=stacked.device)
        return int((stacked * weights).sum().item())

    def _raise_difference(self, call: BoundedCall) -> None:
        """Exchange the values of all ranks, and raise the same error on each."""
        store, ranks = self._state.store, self._state.ranks
        keys = [call.key(f"values/{rank}") for rank in ranks]
        store.set(call.key(f"values/{dist.get_rank()}"), " ".join(map(str, self._own_values)))
        poll_until(lambda: store.check(keys), call)
        values = {
            rank: tuple(map(int, text.split()))
            for rank, text in zip(ranks, store.multi_get(keys), strict=True)
        }
        odd, why = describe_differences(values)
        raise RanksOutOfSync(f"group {self._name!r}", why=why, odd=odd)


_checkers: WeakKeyDictionary[dist.ProcessGroup, LockstepChecker] = WeakKeyDictionary()
atexit.register(_checkers.clear)  # gloo's threads must not outlive the interpreter


def _create_checker(group: dist.ProcessGroup | None, every: int, timeout: float) -> LockstepChecker:
    state = state_of(group)
    if every < 1 or not timeout > 0:
        why = f"every={every} must be at least 1, and timeout={timeout} a positive number"
        raise InvalidValue("lockstep", why=why)
    checker = _checkers[state.group] = LockstepChecker(state, timeout)
    return checker


def sum_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tensor's bits as int64, on its device; copy only if not contiguous."""
    local = tensor.detach()
    local = getattr(local, "to_local", lambda: local)()  # a DTensor's own shard
    flat = local.contiguous().view(-1)
    flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    if flat.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=flat.device)
    if (flat.storage_offset() * flat.element_size()) % 8:
        return flat.view(torch.uint8).sum(dtype=torch.int64)
    per_word = 8 // flat.element_size()
    whole = flat.numel() // per_word * per_word
    total = flat[:whole].view(torch.int64).sum()
    if whole == flat.numel():
        return total
    return total + flat[whole:].view(torch.uint8).sum(dtype=torch.int64)


def describe_differences(values: dict[int, tuple[int, ...]]) -> tuple[tuple[int, ...], str]:
    """Return the ranks that differ from the majority, and a sentence with each rank's values."""
    odd: set[int] = set()
    sentences = []
    for index, field in enumerate(_FIELDS):
        counts = Counter(own[index] for own in values.values())
        if len(counts) == 1:
            continue
        usual = counts.most_common(1)[0][0]
        by_value: dict[int, list[int]] = {value: [] for value in counts}
        for rank, own in values.items():
            by_value[own[index]].append(rank)
        usual_ranks = by_value.pop(usual)
        odd.update(rank for ranks in by_value.values() for rank in ranks)
        parts = [_describe_value(field, ranks, value) for value, ranks in by_value.items()]
        majority = _describe_value(field, usual_ranks, usual, short=True)
        sentences.append(f"{', '.join(parts)}, {majority}")
    return tuple(sorted(odd)), "; ".join(sentences)


def _describe_value(field: str, ranks: Sequence[int], value: int, *, short: bool = False) -> str:
    """Return ``rank 3 is at step 41``; ``short``, after such a text: ``ranks 0-2 at 42``."""
    subject, is_one = describe_ranks(ranks), len(ranks) == 1
    if field == "step":
        where = "at" if short else "is at step" if is_one else "are at step"
        return f"{subject} {where} {value}"
    if field == "batches":
        count = "an unknown number of" if value == _NONE else str(value)
        return f"{subject} {count}" if short else f"{subject} had {count} batches"
    checksum = "none" if value == _NONE else f"checksum {value & (2**64 - 1):016x}"
    if short:
        return f"{subject} {checksum}"
    return f"{subject} {'has' if is_one else 'have'} other parameters ({checksum})"

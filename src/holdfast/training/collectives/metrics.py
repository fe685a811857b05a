"""Reduce a dictionary of sums, counts and extremes over ranks in one message, and compare its keys.

Every rank sends its numbers to all, in float64, and each reduces them itself: one latency, where a
sum needs two, and maxima a second collective. The message begins with the count of numbers, a
checksum of their names, and whether one of them is invalid, so that every rank detects an error in
the same call. All ranks always send equally many bytes: the size follows from earlier calls, in
which all ranks had the same names.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, SupportsFloat, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.collectives.backend_calls import (
    start_all_gather,
    start_all_to_all,
    uses_gloo,
)
from holdfast.training.collectives.bounded_wait import begin_call, poll_until, wait_for_works
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import runs_alone, state_of
from holdfast.training.collectives.validation import check_alone

#: Numbers before the values: their count, two halves of their names' checksum, and 1 if invalid.
_HEADER = 4
#: float64 numbers in the first message of a group; it grows after more were needed once.
_FIRST_CAPACITY = 64
#: Up to this many ranks send to all at once; gloo's own gather is a ring with a latency per rank.
_MAX_DIRECT_RANKS = 32
_LARGEST_EXACT_INT = 1 << 53
_MAX_LISTED = 4

MetricValue = float | int | torch.Tensor
_capacities: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


@suggest_keywords
def sync_metrics(
    values: Mapping[str, MetricValue],
    *,
    largest: Collection[str] = (),
    smallest: Collection[str] = (),
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> dict[str, float]:
    """Return the sum of each value over the ranks of ``group``, in one message.

    ``largest`` and ``smallest`` name values of which the maximum or minimum is returned instead.
    Values are numbers, or tensors of one element on any device. All ranks pass the same names, in
    any order, and get the same bits: sums are rounded once (``math.fsum``), so counts are exact up
    to 2**53. NaN on one rank is NaN on all. An int that float64 cannot represent is refused.
    ``timeout``: as in :func:`holdfast.comm.all_reduce`.

    Raises:
        InvalidValue: a value is not a number, or the names differ between ranks; on all ranks. The
            group remains usable.
        CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    names = _sort_names(tuple(values), frozenset(largest), frozenset(smallest))
    if runs_alone(group):
        numbers, error = _as_numbers(values, names)
        check_alone("sync_metrics", error)
        alone = dict(zip(names.order, numbers, strict=True))
        return {name: alone[name] for name in values}
    state = state_of(group)
    call = begin_call(state, "sync_metrics", timeout, nbytes=8 * (_HEADER + len(values)))
    numbers, error = _as_numbers(values, names)
    if error:
        state.store.set(call.key(f"invalid/{dist.get_rank()}"), error)
    message = [len(numbers), *names.checksum, float(bool(error)), *numbers]
    columns = zip(*_gather_numbers(message, names, call), strict=True)
    reduced = dict(zip(names.order, map(_reduce, names.kinds, columns), strict=True))
    return {name: reduced[name] for name in values}


@dataclass(frozen=True, slots=True)
class _MetricNames:
    """Names in the order of the message, and their reductions: ``sum``, ``max`` or ``min``."""

    order: tuple[str, ...]
    kinds: tuple[str, ...]
    checksum: tuple[float, float]
    error: str

    def describe(self) -> list[str]:
        """Return each name with its reduction, as ``'loss' (sum)``."""
        return [f"{name!r} ({kind})" for name, kind in zip(self.order, self.kinds, strict=True)]


@lru_cache(maxsize=256)
def _sort_names(
    names: tuple[object, ...], largest: frozenset[str], smallest: frozenset[str]
) -> _MetricNames:
    error = ""
    order = tuple(sorted(name for name in names if isinstance(name, str)))
    if len(order) < len(names):
        error = (
            f"name {next(name for name in names if not isinstance(name, str))!r} is not a string"
        )
    elif unknown := sorted((largest | smallest) - set(order)):
        error = f"largest or smallest contains {unknown[0]!r}, which is not among the values"
    elif both := sorted(largest & smallest):
        error = f"{both[0]!r} is in both largest and smallest"
    kinds = tuple(
        "max" if name in largest else "min" if name in smallest else "sum" for name in order
    )
    digest = hashlib.sha256(json.dumps([order, kinds]).encode()).digest()
    # 48 bits each are exact in float64.
    checksum = float(int.from_bytes(digest[:6])), float(int.from_bytes(digest[6:12]))
    return _MetricNames(order, kinds, checksum, error)


def _as_numbers(values: Mapping[str, MetricValue], names: _MetricNames) -> tuple[list[float], str]:
    """Return the values in message order (0 for invalid ones), and the first error."""
    error = names.error
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    for name in [name for name, value in tensors.items() if value.numel() != 1]:
        count = tensors.pop(name).numel()
        error = error or f"{name!r} is a tensor of {count:,} elements; reduce it to one"
    items = _fetch_items(tensors)
    numbers = []
    for name in names.order:
        value = items.get(name, values[name])
        number, why = (value, "") if type(value) is float else _as_float(name, value)
        numbers.append(number)
        error = error or why
    return numbers, error


def _as_float(name: str, value: object) -> tuple[float, str]:
    """Return the value as float64, and why that is not possible."""
    if isinstance(value, str | bytes | torch.Tensor):
        return 0.0, f"{name!r} is not a number but {type(value).__name__}"
    try:
        number = float(cast("SupportsFloat", value))
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        return 0.0, f"{name!r} is not a number but {kind}, or too large for float64"
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT_INT and int(number) != value:
        return 0.0, f"{name!r} is {value}, which float64 cannot represent; pass float({name})"
    return number, ""


def _fetch_items(tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """Return the tensors' values, with one copy per dtype and accelerator."""
    items: dict[str, object] = {}
    by_kind: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu":
            items[name] = tensor.item()
        else:
            by_kind.setdefault((tensor.dtype, tensor.device), []).append(name)
    for members in by_kind.values():
        stacked = torch.stack([tensors[name].detach().reshape(()) for name in members])
        items.update(zip(members, stacked.tolist(), strict=True))
    return items


def _reduce(kind: str, column: tuple[float, ...]) -> float:
    """Reduce one value of all ranks to the same bits on each; NaN prevails."""
    if kind == "sum":
        try:
            return math.fsum(column)
        except (ValueError, OverflowError):  # both infinities, or beyond the largest number
            return sum(column)
    if any(math.isnan(value) for value in column):
        return math.nan
    return max(column) if kind == "max" else min(column)


# ---- the message


def _gather_numbers(
    message: list[float], names: _MetricNames, call: BoundedCall
) -> list[list[float]]:
    """Return the numbers of each rank; a second message follows if they exceed the first.

    Raises:
        InvalidValue: a rank has other names, or an invalid value.
    """
    capacity = _capacities.get(call.state.group, _FIRST_CAPACITY)
    rows = _exchange(message[:capacity], capacity, call)
    invalid = [rank for rank, row in zip(call.state.ranks, rows, strict=True) if row[_HEADER - 1]]
    if invalid:
        # Each of these ranks has stored its error before it sent its numbers.
        why = call.state.store.get(call.key(f"invalid/{invalid[0]}")).decode()
        raise InvalidValue(f"sync_metrics on {describe_ranks(invalid)}", why=why)
    if any(row[:_HEADER] != rows[0][:_HEADER] for row in rows):
        _raise_different_names(call, names)
    excess = len(message) - capacity
    if excess > 0:
        rest = _exchange(message[capacity:], excess, call)
        rows = [row + others for row, others in zip(rows, rest, strict=True)]
        _capacities[call.state.group] = 1 << (len(message) - 1).bit_length()
    return [row[_HEADER : len(message)] for row in rows]


def _exchange(numbers: list[float], size: int, call: BoundedCall) -> list[list[float]]:
    """Return ``size`` numbers of every rank of the group."""
    state = call.state
    count = len(state.ranks)
    padded = numbers + [0.0] * (size - len(numbers))
    own = torch.tensor(padded, dtype=torch.float64, device=state.device)
    received = own.new_empty(count * size)
    if uses_gloo(state, own) and count <= _MAX_DIRECT_RANKS:
        work = start_all_to_all(received, own.repeat(count), state)
    else:
        work = start_all_gather(received, own, state)
    wait_for_works([work], call)
    rows: list[list[float]] = received.view(count, size).tolist()
    return rows


def _raise_different_names(call: BoundedCall, names: _MetricNames) -> NoReturn:
    """Exchange the names of all ranks, and raise on each which ranks differ from the majority."""
    state = call.state
    keys = {rank: call.key(f"names/{rank}") for rank in state.ranks}
    state.store.set(keys[dist.get_rank()], json.dumps(names.describe()))
    poll_until(lambda: state.store.check(list(keys.values())), call)
    by_rank = {rank: frozenset(json.loads(state.store.get(key))) for rank, key in keys.items()}
    majority = Counter(by_rank.values()).most_common(1)[0][0]
    parts = []
    for rank, own in by_rank.items():
        lacks, extra = sorted(majority - own), sorted(own - majority)
        differences = [f"lacks {_join_first(lacks)}"] if lacks else []
        differences += [f"also has {_join_first(extra)}"] if extra else []
        if differences:
            parts.append(f"rank {rank} {' and '.join(differences)}")
    raise InvalidValue(
        "sync_metrics",
        why=f"the names differ between ranks ({_join_first(parts, '; ')})",
        next_step="pass the same names on every rank, with 0 where there is no value",
    )


def _join_first(words: list[str], separator: str = ", ") -> str:
    rest = len(words) - _MAX_LISTED
    return separator.join(words[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")

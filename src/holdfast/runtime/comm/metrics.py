"""A dictionary of sums, counts and extremes over ranks, in one message that also tells where the dictionaries differ.

Every rank sends its numbers to all, in float64, and each reduces them itself: one latency, where a sum takes two and
maxima a second collective. The message begins with how many numbers there are, a checksum of their names, and if
something is wrong with one of them, so that every rank finds out in the same call. All ranks send as many bytes as
each other in any case: their number follows from the calls before, in which all ranks had the same names.
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

from holdfast.errors import BadValue
from holdfast.report.ranksets import say_ranks
from holdfast.runtime.comm.broadcast import on_gloo
from holdfast.runtime.comm.groups import GroupState, state_of
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.waiting import begin, finish, poll

#: In front of the numbers: how many, two halves of their names' checksum, and 1 where something is wrong.
_HEADER = 4
#: float64 numbers in the first message of a group. After more were needed once, there are as many in every message.
_FIRST_CAPACITY = 64
#: Up to so many ranks all send to all at once; gloo's own gathering is a ring, which pays a latency a rank.
_MOST_AT_ONCE = 32
_EXACT = 1 << 53
_MOST_SAID = 4

Value = float | int | torch.Tensor
_capacities: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def sync_metrics(
    values: Mapping[str, Value],
    *,
    largest: Collection[str] = (),
    smallest: Collection[str] = (),
    group: dist.ProcessGroup | None = None,
    timeout: float | str | None = None,
) -> dict[str, float]:
    """The sum of each value over the ranks of ``group``, or the largest or smallest of those named so; in one message.

    Numbers, or tensors of one element, on any device. All ranks give the same names, in any order, and get the same
    bits: sums are rounded once (``math.fsum``), so that counts are exact up to 2**53. NaN on one rank is NaN on all.
    An int that float64 cannot hold is refused. ``timeout``: as of :func:`holdfast.comm.all_reduce`.

    Raises:
        BadValue: a value is no number, or the names differ over ranks; all ranks are told the same, and the group is
            none the worse.
        CollectiveMismatch, CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    call = begin(state, "sync_metrics", timeout, nbytes=8 * (_HEADER + len(values)))
    names = _named(tuple(values), frozenset(largest), frozenset(smallest))
    numbers, bad = _numbers(values, names)
    if bad:
        state.store.set(call.key(f"bad/{dist.get_rank()}"), bad)
    rows = _gathered([len(numbers), *names.checksum, float(bool(bad)), *numbers], names, call)
    reduced = map(_reduce, names.kinds, zip(*rows, strict=True))
    found = dict(zip(names.order, reduced, strict=True))
    return {name: found[name] for name in values}


@dataclass(frozen=True, slots=True)
class _Names:
    """The names in the order of the message, and how each is reduced: ``sum``, ``max`` or ``min``."""

    order: tuple[str, ...]
    kinds: tuple[str, ...]
    checksum: tuple[float, float]
    bad: str

    def said(self) -> list[str]:
        """Each name with its reduction, for those who compare them."""
        return [f"{name!r} ({kind})" for name, kind in zip(self.order, self.kinds, strict=True)]


@lru_cache(maxsize=256)
def _named(names: tuple[object, ...], largest: frozenset[str], smallest: frozenset[str]) -> _Names:
    bad = ""
    order = tuple(sorted(name for name in names if isinstance(name, str)))
    if len(order) < len(names):
        bad = f"the name {next(name for name in names if not isinstance(name, str))!r} is no text"
    elif absent := sorted((largest | smallest) - set(order)):
        bad = f"{absent[0]!r} is to be reduced to its largest or smallest, and is not among the values"
    elif both := sorted(largest & smallest):
        bad = f"{both[0]!r} cannot be reduced to its largest and to its smallest at once"
    kinds = tuple("max" if name in largest else "min" if name in smallest else "sum" for name in order)
    digest = hashlib.sha256(json.dumps([order, kinds]).encode()).digest()
    halves = float(int.from_bytes(digest[:6])), float(int.from_bytes(digest[6:12]))  # 48 bits each are exact
    return _Names(order, kinds, halves, bad)


def _numbers(values: Mapping[str, Value], names: _Names) -> tuple[list[float], str]:
    """The values in the order of the message, and what is wrong with the first that cannot be sent (sent as 0)."""
    bad = names.bad
    given = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    for name in [name for name, value in given.items() if value.numel() != 1]:
        bad = bad or f"{name!r} is a tensor of {given.pop(name).numel():,} elements; reduce it to one"
    items = _items(given)
    numbers = []
    for name in names.order:
        value = items.get(name, values[name])
        number, why = (value, "") if type(value) is float else _as_float(name, value)
        numbers.append(number)
        bad = bad or why
    return numbers, bad


def _as_float(name: str, value: object) -> tuple[float, str]:
    """The value as the float64 that is sent, and why it cannot be."""
    if isinstance(value, str | bytes | torch.Tensor):
        return 0.0, f"{name!r} is no number but {type(value).__name__}"
    try:
        number = float(cast("SupportsFloat", value))
    except (TypeError, ValueError, OverflowError):
        return 0.0, f"{name!r} is no number but {type(value).__name__}, or too large for float64"
    if isinstance(value, int) and abs(value) > _EXACT and int(number) != value:
        return 0.0, f"{name!r} is {value}, which float64 cannot hold; give a float where that does not matter"
    return number, ""


def _items(tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """Their values as Python's numbers; those of one dtype on one accelerator with one copy."""
    found: dict[str, object] = {}
    together: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu":
            found[name] = tensor.item()
        else:
            together.setdefault((tensor.dtype, tensor.device), []).append(name)
    for members in together.values():
        stacked = torch.stack([tensors[name].detach().reshape(()) for name in members])
        found.update(zip(members, stacked.tolist(), strict=True))
    return found


def _reduce(kind: str, column: tuple[float, ...]) -> float:
    """One value of all ranks, to the same bits on each; NaN wins."""
    if kind == "sum":
        try:
            return math.fsum(column)
        except (ValueError, OverflowError):  # both infinities, or beyond the largest number
            return sum(column)
    if any(math.isnan(value) for value in column):
        return math.nan
    return max(column) if kind == "max" else min(column)


# ---- the message


def _gathered(message: list[float], names: _Names, call: Call) -> list[list[float]]:
    """The numbers of all ranks, rank by rank; a second message where they do not fit into the first.

    Raises:
        BadValue: a rank has other names, or a value that cannot be sent.
    """
    capacity = _capacities.get(call.state.group, _FIRST_CAPACITY)
    rows = _exchanged(message[:capacity], capacity, call)
    if any(row[_HEADER - 1] for row in rows):
        _raise_bad(call, [rank for rank, row in zip(call.state.ranks, rows, strict=True) if row[_HEADER - 1]])
    if any(row[:_HEADER] != rows[0][:_HEADER] for row in rows):
        _raise_different(call, names)
    more = len(message) - capacity
    if more > 0:
        rest = _exchanged(message[capacity:], more, call)
        rows = [row + others for row, others in zip(rows, rest, strict=True)]
        _capacities[call.state.group] = 1 << (len(message) - 1).bit_length()
    return [row[_HEADER : len(message)] for row in rows]


def _exchanged(numbers: list[float], size: int, call: Call) -> list[list[float]]:
    """What every rank of the group sent, each as many numbers as ``size``."""
    state = call.state
    count = len(state.ranks)
    padded = numbers + [0.0] * (size - len(numbers))
    if on_gloo(state, torch.empty(0, device=state.device)) and count <= _MOST_AT_ONCE:
        mine = torch.tensor(padded, dtype=torch.float64).repeat(count)
        theirs = torch.empty_like(mine)
        finish([state.group.alltoall_base(theirs, mine, [], [])], call)
    else:
        mine = torch.tensor(padded, dtype=torch.float64, device=state.device)
        theirs = mine.new_empty(count * size)
        finish([state.group._allgather_base(theirs, mine)], call)  # noqa: SLF001 - all_gather_into_tensor calls it
    rows: list[list[float]] = theirs.view(count, size).tolist()
    return rows


def _raise_bad(call: Call, ranks: list[int]) -> NoReturn:
    """Every rank with a bad value has written it down before it sent anything."""
    store = call.state.store
    first = store.get(call.key(f"bad/{ranks[0]}")).decode()
    raise BadValue(f"sync_metrics on {say_ranks(ranks)}", why=first)


def _raise_different(call: Call, names: _Names) -> NoReturn:
    """All ranks have seen that the names differ: each writes its own down, and says who has others than most."""
    state: GroupState = call.state
    keys = {rank: call.key(f"names/{rank}") for rank in state.ranks}
    state.store.set(keys[dist.get_rank()], json.dumps(names.said()))
    poll(lambda: state.store.check(list(keys.values())), call)
    told = {rank: frozenset(json.loads(state.store.get(key))) for rank, key in keys.items()}
    most = Counter(told.values()).most_common(1)[0][0]
    parts = []
    for rank, own in told.items():
        lacks, has = sorted(most - own), sorted(own - most)
        if lacks or has:
            parts.append(" and ".join([
                *([f"lacks {_some(lacks)}"] if lacks else []), *([f"has {_some(has)} besides"] if has else []),
            ]).join((f"{say_ranks([rank])} ", "")))  # fmt: skip
    raise BadValue("sync_metrics", why=f"the names differ over ranks ({_some(parts, '; ')})",
                   next_step="give the same names on every rank, 0 where there is nothing")  # fmt: skip


def _some(words: list[str], between: str = ", ") -> str:
    rest = len(words) - _MOST_SAID
    return between.join(words[:_MOST_SAID]) + (f" and {rest} more" if rest > 0 else "")
